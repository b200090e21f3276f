// The timeline: phases of a boot, a lane per vCPU with its states, lanes of programs, events and console, and the picked
// time.

/** States of a vCPU in the order in which a lane stacks them, with their names and sources. */
const STATES = [
  ['user', 'User code', true],
  ['kernel', 'Kernel', true],
  ['interrupt', 'Interrupts', true],
  ['idle', 'Idle task', true],
  ['unsampled', 'In the guest, not sampled', false],
  ['kvm', 'KVM for a halted guest', false],
  ['vmm', 'VMM', false],
  ['sampler', 'Sampler', false],
  ['waiting', 'Waiting for a CPU of the host', false],
  ['paused', 'Paused', false],
  ['halted', 'Halted', false],
];

const LANE = { axis: 22, height: 40, gap: 8, marks: 18, use: 22, more: 18 };

/**
 * Stretches of one vCPU: `begin` and `end` in s and the time of each state, s. The clocks give all but the first four,
 * which divide the sampled time in the guest by its samples.
 */
function segments(row) {
  return row.end.map((end, i) => {
    const state = {};
    for (const name of ['guest', 'halted', 'waiting', 'kvm', 'vmm', 'sampler', 'paused']) {
      state[name] = row[name][i] / 1e6;
    }
    const length = Object.values(state).reduce((sum, s) => sum + s, 0);
    const ticks = ['user', 'kernel', 'interrupt', 'idle'].map((mode) => row[mode][i]);
    const all = ticks.reduce((sum, n) => sum + n, 0);
    const off = Math.min(row.unsampled[i] / 1e6, state.guest);
    ['user', 'kernel', 'interrupt', 'idle'].forEach((mode, at) => {
      state[mode] = all > 0 ? (state.guest - off) * ticks[at] / all : 0;
    });
    // The mode of a guest without a tick is not known.
    state.unsampled = all > 0 ? off : state.guest;
    return { begin: end / 1e6 - length, end: end / 1e6, state };
  });
}

class Timeline {
  constructor(profile, view) {
    this.profile = profile;
    this.view = view;
    this.lanes = profile.microstates.map((row) => {
      const list = segments(row);
      return { name: row.name, list, host: row.places ? { name: row.name, list: hostSegments(row, list) } : null };
    });
    this.length = profile.length;
    this.begin = profile.begin;
    this.zoom = [this.begin, this.begin + this.length];
    /** A time that another part of the page points to, s. */
    this.mark = null;
    /** Called after a change of the time that is shown. */
    this.onZoom = () => {};
    this.activity = new Activity(profile);
    this.canvas = $('lane-canvas');
    this.element = $('lanes');
    this.start();
  }

  start() {
    this.arrange();
    showPhases(this.profile, this.view);
    this.view.onChange(() => this.update());
    theme.listeners.push(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
    this.listenToPointer();
    this.element.addEventListener('keydown', (event) => this.key(event));
    this.listenToControls();
    this.update();
  }

  /** Places the lanes below each other, and writes their names. */
  arrange() {
    let y = LANE.axis;
    const next = (height, gap) => {
      const top = y;
      y += height + gap;
      return { top, height };
    };
    this.phases = this.profile.phases.length > 0 ? next(LANE.marks, LANE.gap) : null;
    this.lanes.forEach((lane) => {
      Object.assign(lane, next(LANE.height, lane.host ? 3 : LANE.gap));
      if (lane.host) {
        Object.assign(lane.host, next(LANE.use, LANE.gap));
      }
    });
    this.uses = this.activity.shown().map((use) => ({ ...use, ...next(use.lane ? LANE.use : LANE.more, 3) }));
    this.marks = next(2 * LANE.marks, 4);
    this.height = y;
    const focused = document.activeElement?.dataset.lane;
    const labels = this.labels();
    $('lane-names').replaceChildren(...labels);
    const longest = Math.max(...labels.map((label) => label.textContent.length));
    const room = `min(${Math.min(15, Math.max(4.2, 0.55 * longest + 1))}rem, 32vw)`;
    // The heat map has the same axis.
    ['lane-names', 'heat-rows'].forEach((id) => { $(id).style.minWidth = room; });
    // The button that was pressed is another one now.
    labels.find((label) => focused !== undefined && label.dataset.lane === focused)?.focus();
  }

  labels() {
    const at = ({ top, height }, label) => {
      label.style.top = `${top + height / 2}px`;
      return label;
    };
    const { top, height } = this.marks;
    const name = (place, text) => at(place, el('span', { title: text }, text));
    return [
      ...(this.phases ? [name(this.phases, 'Boot')] : []),
      ...this.lanes.flatMap((lane) => [name(lane, lane.name), ...(lane.host ? [name(lane.host, `${lane.name}, host`)] : [])]),
      ...this.uses.map((use) => at(use, this.useLabel(use))),
      name({ top, height: height / 2 }, 'Events'),
      name({ top: top + height / 2, height: height / 2 }, 'Console'),
    ];
  }

  /** A button that shows the parts of a program or process, or what is shown of one that has none. */
  useLabel({ lane, of, more, depth }) {
    const { activity, view } = this;
    const button = (key, text, hint, act) => {
      const label = el('button', { type: 'button', title: hint, 'data-lane': key }, text);
      label.style.paddingLeft = `${depth * 0.7}rem`;
      label.addEventListener('click', () => { act(); this.arrange(); this.draw(); });
      return label;
    };
    if (!lane) {
      return button(`more${of.key}`, `${count(more)} more`, 'Show more lanes', () => activity.showMore(of));
    }
    const time = `${lane.name}, ${duration(lane.time)} of CPU time`;
    if (lane.parts.length > 0) {
      const open = activity.open.has(lane.key);
      const label = button(lane.key, `${open ? '▾' : '▸'} ${lane.name}`, time, () => activity.toggle(lane));
      label.setAttribute('aria-expanded', String(open));
      return label;
    }
    return button(lane.key, lane.name, `${time} — click to show its process alone`, () => view.only(view.process === lane.row ? null : lane.row));
  }

  listenToControls() {
    const on = (id, action) => $(id).addEventListener('click', action);
    on('zoom-in', () => this.zoomBy(0.5));
    on('zoom-out', () => this.zoomBy(2));
    on('zoom-picked', () => this.zoomTo(...this.view.seconds()));
    on('zoom-all', () => this.zoomTo(this.begin, this.begin + this.length));
    for (const id of ['from', 'to']) {
      $(id).min = this.begin;
      $(id).max = this.begin + this.length;
      $(id).addEventListener('change', () => {
        // Also where the ends were typed the other way round.
        const [from, to] = ['from', 'to'].map((field) => Number($(field).value)).sort((a, b) => a - b);
        this.view.pickSeconds(from, to);
        this.update();
      });
    }
  }

  /** Zooms around the middle of the shown time, or around `centre`, s. */
  zoomBy(factor, centre = (this.zoom[0] + this.zoom[1]) / 2) {
    const [from, to] = this.zoom;
    this.zoomTo(centre - (centre - from) * factor, centre + (to - centre) * factor);
  }

  zoomTo(from, to) {
    // At least five buckets: the data has no finer resolution.
    const least = Math.min(this.length, this.profile.step * 5);
    const width = Math.min(this.length, Math.max(least, to - from));
    const begin = Math.max(this.begin, Math.min((from + to - width) / 2, this.begin + this.length - width));
    this.zoom = [begin, begin + width];
    this.draw();
    this.onZoom();
  }

  timeAt(x) {
    const [from, to] = this.zoom;
    return from + Math.max(0, Math.min(1, x / this.canvas.parentElement.clientWidth)) * (to - from);
  }

  listenToPointer() {
    const canvas = this.canvas;
    let begin = null;
    const time = (event) => this.timeAt(event.clientX - canvas.getBoundingClientRect().left);
    canvas.addEventListener('pointerdown', (event) => {
      if (event.button === 0) {
        begin = { time: time(event), x: event.clientX };
        canvas.setPointerCapture(event.pointerId);
      }
    });
    canvas.addEventListener('pointermove', (event) => {
      if (begin && Math.abs(event.clientX - begin.x) > 3) {
        const ends = [begin.time, time(event)].sort((a, b) => a - b);
        this.view.pickSeconds(...ends);
      }
      this.hover(event);
    });
    canvas.addEventListener('pointerup', (event) => {
      if (begin && Math.abs(event.clientX - begin.x) <= 3) {
        this.pickStretch(event);
      }
      begin = null;
    });
    canvas.addEventListener('pointercancel', () => { begin = null; });
    canvas.addEventListener('pointerleave', () => { $('lane-tip').hidden = true; });
    canvas.addEventListener('dblclick', () => this.view.pickAll());
    canvas.addEventListener('wheel', (event) => {
      if (event.ctrlKey) {
        event.preventDefault();
        this.zoomBy(event.deltaY > 0 ? 1.25 : 0.8, time(event));
      }
    }, { passive: false });
  }

  /** The lane and the segment at the pointer. */
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const time = this.timeAt(event.clientX - box.left);
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const holds = (place) => place && y >= place.top && y < place.top + place.height;
    const lane = this.lanes.find(holds);
    const host = this.lanes.map((of) => of.host).find(holds);
    const segment = (lane ?? host)?.list.find((s) => s.begin <= time && time < s.end);
    const phase = holds(this.phases) ? phaseAt(this.profile, time) : undefined;
    return { time, lane, host, segment, phase, use: this.uses.find(holds)?.lane, isMark: holds(this.marks), x, y };
  }

  /** Picks the segment or the phase at the pointer, or shows the process of a lane alone. */
  pickStretch(event) {
    const { view } = this;
    const { segment, phase, use } = this.at(event);
    if (segment) {
      view.pickSeconds(segment.begin, segment.end);
    } else if (phase) {
      view.pickSeconds(phase.from, phase.to);
    } else if (use && use.row !== null) {
      view.only(view.process === use.row ? null : use.row);
    }
  }

  hover(event) {
    const { time, lane, host, segment, phase, use, isMark, x, y } = this.at(event);
    const perPixel = (this.zoom[1] - this.zoom[0]) / this.canvas.parentElement.clientWidth;
    const tip = $('lane-tip');
    const lines = [`${moment(time, this.profile.step / 10)} s`];
    if (segment && host) {
      lines.push(`${host.name} in the host, ${duration(segment.end - segment.begin)} to ${moment(segment.end, this.profile.step / 10)} s`, ...describePlaces(segment));
    } else if (segment) {
      const length = segment.end - segment.begin;
      lines.push(`${lane.name}, ${duration(length)} to ${moment(segment.end, this.profile.step / 10)} s`);
      for (const [state, name] of STATES) {
        if (segment.state[state] / length >= 0.001) {
          lines.push(`${name} ${percent(segment.state[state] / length)}`);
        }
      }
    } else if (phase) {
      lines.push(phaseText(phase));
    } else if (use) {
      lines.push(...this.activity.describe(use, time, perPixel));
    } else if (isMark) {
      const near = perPixel * 5;
      lines.push(...this.profile.report.events.filter((e) => Math.abs(e.time_s - time) <= near).slice(0, 4).map((e) => `${e.kind}: ${e.text}`));
    }
    showTip(tip, this.canvas.parentElement, lines, x, y);
  }

  key(event) {
    // The buttons in it have keys themselves.
    if (event.target !== this.element) {
      return;
    }
    const { view } = this;
    const step = Math.max(1, Math.round((this.zoom[1] - this.zoom[0]) / this.profile.step / 50));
    const move = (by) => {
      if (event.shiftKey) {
        view.pick(view.from, view.to + by);
      } else {
        const room = Math.max(-view.from, Math.min(by, this.profile.time.buckets - view.to));
        view.pick(view.from + room, view.to + room);
      }
    };
    const actions = {
      ArrowLeft: () => move(-step),
      ArrowRight: () => move(step),
      Enter: () => this.zoomTo(...view.seconds()),
      '+': () => this.zoomBy(0.5),
      '=': () => this.zoomBy(0.5),
      '-': () => this.zoomBy(2),
      Home: () => view.pick(0, view.to - view.from),
      End: () => view.pick(this.profile.time.buckets - view.to + view.from, this.profile.time.buckets),
    };
    const action = actions[event.key];
    if (action && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      action();
    }
  }

  /** Points to a time, s; null for none. */
  point(s) {
    this.mark = s;
    this.draw();
  }

  update() {
    const [from, to] = this.view.seconds();
    const { step } = this.profile;
    $('from').value = moment(from, step);
    $('to').value = moment(to, step);
    this.draw();
    this.table(from, to);
  }

  draw() {
    const { context, width } = prepare(this.canvas, this.height);
    const [from, to] = this.zoom;
    const x = (s) => (to > from ? (s - from) / (to - from) * width : 0);
    this.drawAxis(context, width, x);
    if (this.phases) {
      drawPhases(context, this.profile, x, this.phases);
    }
    this.lanes.forEach((lane) => {
      this.drawLane(context, width, x, lane, STATES);
      if (lane.host) {
        this.drawLane(context, width, x, lane.host, PLACES);
      }
    });
    this.uses.filter(({ lane }) => lane).forEach(({ lane, top, height }) => this.activity.draw(context, { width, x, from, to }, lane, top, height));
    this.drawMarks(context, width, x);
    if (!this.view.whole) {
      const [begin, end] = this.view.seconds();
      context.fillStyle = theme.colour('veil');
      context.fillRect(0, LANE.axis, Math.max(0, x(begin)), this.height);
      context.fillRect(x(end), LANE.axis, width, this.height);
      context.fillStyle = theme.colour('focus');
      context.fillRect(x(begin) - 1, LANE.axis - 4, 2, this.height);
      context.fillRect(x(end) - 1, LANE.axis - 4, 2, this.height);
    }
    if (this.mark !== null) {
      context.fillStyle = theme.colour('text');
      context.fillRect(x(this.mark), LANE.axis - 4, 1, this.height);
    }
  }

  drawAxis(context, width, x) {
    const [from, to] = this.zoom;
    const step = niceStep((to - from) / Math.max(2, width / 110));
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = 'middle';
    context.fillStyle = theme.colour('quiet');
    for (let n = Math.ceil(from / step); n * step <= to + step / 1e6; n++) {
      const place = x(n * step);
      const text = `${moment(n * step, step)} s`;
      const size = context.measureText(text).width;
      context.fillRect(Math.min(place, width - 1), LANE.axis - 5, 1, 4);
      context.fillText(text, Math.max(0, Math.min(place - size / 2, width - size)), 8);
    }
  }

  drawLane(context, width, x, { list, top, height }, states) {
    context.fillStyle = theme.colour('raised');
    context.fillRect(0, top, width, height);
    for (const { begin, end, state } of list) {
      const left = x(begin);
      const right = x(end);
      if (right < 0 || left > width || end <= begin) {
        continue;
      }
      let y = top + height;
      for (const [name] of states) {
        const part = state[name] / (end - begin) * height;
        context.fillStyle = name === 'unsampled' ? hatched(context) : theme.colour(name);
        context.fillRect(left, y - part, Math.max(right - left, 0.5), part);
        y -= part;
      }
    }
  }

  drawMarks(context, width, x) {
    const { top } = this.marks;
    context.fillStyle = theme.colour('line');
    context.fillRect(0, top + LANE.marks - 1, width, 1);
    context.fillStyle = theme.colour('text');
    for (const { time_s: s } of this.profile.report.events) {
      const place = x(s);
      if (place >= -5 && place <= width + 5) {
        context.beginPath();
        context.moveTo(place - 5, top + 2);
        context.lineTo(place + 5, top + 2);
        context.lineTo(place, top + LANE.marks - 3);
        context.fill();
      }
    }
    context.fillStyle = theme.colour('quiet');
    for (const [s] of this.profile.console.lines) {
      context.fillRect(x(s), top + LANE.marks + 3, 1, LANE.marks - 5);
    }
  }

  /** Times by state and vCPU in the picked time: segments count by the part of them that is picked. */
  table(from, to) {
    const sums = this.lanes.map((lane) => {
      const sum = Object.fromEntries(STATES.map(([name]) => [name, 0]));
      for (const segment of lane.list) {
        const length = segment.end - segment.begin;
        const part = length > 0 ? Math.max(0, Math.min(to, segment.end) - Math.max(from, segment.begin)) / length : 0;
        STATES.forEach(([name]) => { sum[name] += segment.state[name] * part; });
      }
      return sum;
    });
    const columns = this.lanes.map((lane) => lane.name);
    const total = (sum) => STATES.reduce((all, [name]) => all + sum[name], 0);
    const head = el('tr', {}, el('th', { scope: 'col' }, 'State'), ...columns.flatMap((name) => [el('th', { scope: 'col', className: 'number' }, name), el('th', { scope: 'col', className: 'number' }, '%')]), el('th', { scope: 'col' }, 'Known'));
    const rows = STATES.map(([state, name, estimated]) => el('tr', { 'data-state': state },
      el('th', { scope: 'row' }, swatch(state), name),
      ...sums.flatMap((sum, i) => [el('td', { className: 'number', 'data-title': columns[i] }, duration(sum[state])), el('td', { className: 'number', 'data-title': 'of it' }, total(sum) > 0 ? percent(sum[state] / total(sum)) : '–')]),
      el('td', { className: 'quiet', 'data-title': 'Known' }, estimated ? 'time in the guest is exact, its parts by samples' : 'exactly')));
    const table = $('states');
    table.replaceChildren(table.caption, el('thead', {}, head), el('tbody', {}, ...rows));
  }
}

/** Diagonal lines: a time of which nothing more is known. */
function hatched(context) {
  const tile = document.createElement('canvas');
  tile.width = 8;
  tile.height = 8;
  const pen = tile.getContext('2d');
  pen.fillStyle = theme.colour('raised');
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = theme.colour('unsampled');
  pen.lineWidth = 1.5;
  for (const offset of [-8, 0, 8]) {
    pen.moveTo(offset - 1, 9);
    pen.lineTo(offset + 9, -1);
  }
  pen.stroke();
  return context.createPattern(tile, 'repeat');
}

/** 1, 2 or 5 times a power of ten, at least `least`. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1e-9)));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= least);
}

/** Shows lines of text next to a position in `box`. */
function showTip(tip, box, lines, x, y) {
  tip.replaceChildren(...lines.map((line) => el('div', {}, line)));
  tip.hidden = false;
  const left = Math.max(4, Math.min(x + 14, box.clientWidth - tip.offsetWidth - 4));
  tip.style.left = `${left}px`;
  const below = y + 18;
  const fits = below + tip.offsetHeight <= box.scrollTop + box.clientHeight || y < box.scrollTop + tip.offsetHeight + 12;
  tip.style.top = `${fits ? below : y - tip.offsetHeight - 10}px`;
}
