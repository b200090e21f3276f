(function () {
  'use strict';
  const svg = document.documentElement;
  const margin = 10;
  const room = svg.viewBox.baseVal.width - 2 * margin;
  const letter = 7.25;
  // Only a chart over time has one.
  const axis = document.getElementById('axis');
  const whole = { x: 0, width: 1, y: 0 };
  const frames = Array.from(document.getElementById('frames').children, (group) => {
    const rect = group.querySelector('rect');
    const title = group.querySelector('title').textContent;
    const end = title.lastIndexOf(' (');
    return {
      group, rect, name: title.slice(0, end), part: (/([\d.]+)%/.exec(title.slice(end)) || [0, 0])[1],
      text: group.querySelector('text'), fill: rect.getAttribute('fill'),
      x: (Number(rect.getAttribute('x')) - margin) / room, width: Number(rect.getAttribute('width')) / room, y: Number(rect.getAttribute('y')),
    };
  });

  function fitted(name, width) {
    const letters = Math.floor((width - 6) / letter);
    const all = Array.from(name);
    return letters < 3 ? '' : all.length <= letters ? name : `${all.slice(0, letters - 1).join('')}…`;
  }

  // Beginning and width of a frame, as parts of the picture; a chart over time shows a piece of those at the edges.
  function placed(frame, to) {
    const begin = (frame.x - to.x) / to.width;
    const end = begin + frame.width / to.width;
    if (axis) {
      return [Math.max(0, begin), Math.min(1, end) - Math.max(0, begin)];
    }
    return frame.y >= to.y && begin >= -1e-6 && end <= 1 + 1e-6 ? [begin, end - begin] : [0, 0];
  }

  function zoom(to) {
    if (axis) {
      axis.style.display = to === whole ? '' : 'none';
    }
    for (const frame of frames) {
      const above = !axis && frame.y < to.y && frame.x <= to.x + 1e-9 && frame.x + frame.width >= to.x + to.width - 1e-9;
      const [x, width] = above ? [0, 1] : placed(frame, to);
      const shown = width > 1e-9;
      frame.group.style.display = shown ? '' : 'none';
      if (!shown) {
        continue;
      }
      frame.group.style.opacity = above ? 0.6 : '';
      frame.rect.setAttribute('x', margin + x * room);
      frame.rect.setAttribute('width', width * room);
      const name = fitted(frame.name, width * room);
      if (name !== '' && !frame.text) {
        frame.text = document.createElementNS('http://www.w3.org/2000/svg', 'text');
        frame.text.setAttribute('y', frame.y + 12);
        frame.group.append(frame.text);
      }
      if (frame.text) {
        frame.text.textContent = name;
        frame.text.setAttribute('x', margin + x * room + 3);
      }
    }
  }

  function search(wanted) {
    let part = 0;
    let number = 0;
    let end = -1;
    // Outermost first: a match below another one is a part of it.
    const order = frames.slice().sort((a, b) => a.x - b.x || a.y - b.y);
    for (const frame of order) {
      const found = wanted !== '' && frame.name.toLowerCase().includes(wanted.toLowerCase());
      number += found ? 1 : 0;
      frame.rect.setAttribute('fill', found ? '#f39bdc' : frame.fill);
      if (found && frame.x >= end - 1e-9) {
        part += Number(frame.part);
        end = frame.x + frame.width;
      }
    }
    document.getElementById('found').textContent = wanted === '' ? '' : `${wanted}: ${axis ? `found ${number} times` : `${part.toFixed(1)} %`}`;
  }

  frames.forEach((frame) => {
    frame.group.style.cursor = 'pointer';
    frame.group.addEventListener('click', () => zoom(frame));
  });
  addEventListener('keydown', (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === 'f') {
      event.preventDefault();
      search((prompt('Search functions') || '').trim());
    } else if (event.key === 'Escape') {
      search('');
      zoom(whole);
    }
  });
}());
