// The flame graph: frames on a canvas, the largest first, callers above their callees. It shows the picked time.

const ROW = 19;

class Flame {
  constructor(profile, view) {
    this.profile = profile;
    this.view = view;
    this.zoom = [];
    /** The frame that the keyboard is at, by its place. */
    this.focus = 0;
    this.wanted = '';
    /** What the graph shows: `onCpu`, `offCpu`, or `host`, stacks from the host into the guest. */
    this.shows = 'onCpu';
    this.isMatch = new Uint8Array(profile.functions.symbol.length);
    /** The frames that were found, by their places, and the one of them that is shown. */
    this.matches = [];
    this.match = -1;
    /** Called after a change of what the graph shows. */
    this.onChange = () => {};
    this.canvas = $('frame-canvas');
    this.start();
  }

  start() {
    const { profile, view } = this;
    const rows = profile.processes.map((row, i) => [i, row]).filter(([, row]) => row.samples > 0).slice(0, 500);
    $('flame-process').replaceChildren(el('option', { value: '' }, 'All'), ...rows.map(([i, row]) => el('option', { value: String(i) }, processName(row))));
    $('flame-process').addEventListener('change', (event) => view.only(event.target.value === '' ? null : Number(event.target.value)));
    $('difference').hidden = !profile.base;
    if (!profile.offCpu) {
      $('off-cpu').disabled = true;
      $('off-cpu').title = 'Made without `vprof run --exact`, which records where tasks sleep';
    }
    $('with-host').hidden = !profile.hostLeaves;
    $('on-cpu').addEventListener('click', () => this.show('onCpu'));
    $('off-cpu').addEventListener('click', () => this.show('offCpu'));
    $('with-host').addEventListener('click', () => this.show('host'));
    for (const id of ['by-process', 'invert', 'colour-change', 'base-widths']) {
      $(id).addEventListener('change', () => { this.zoom = []; this.focus = 0; this.reshape(); });
    }
    $('search').addEventListener('input', () => this.search($('search').value));
    $('search').addEventListener('keydown', (event) => {
      if (event.key === 'Enter') {
        this.nextMatch();
      }
    });
    $('next-match').addEventListener('click', () => this.nextMatch());
    $('frame-table').addEventListener('toggle', () => this.table());
    view.onChange(() => { this.focus = 0; this.update(); });
    theme.listeners.push(() => { this.legend(); this.draw(); });
    new ResizeObserver(() => this.resized()).observe(this.canvas.parentElement);
    this.listen();
    this.update();
  }

  show(shows) {
    this.choose(shows);
    this.zoom = [];
    this.focus = 0;
    this.update();
  }

  choose(shows) {
    this.shows = shows;
    for (const [id, what] of [['on-cpu', 'onCpu'], ['off-cpu', 'offCpu'], ['with-host', 'host']]) {
      $(id).setAttribute('aria-pressed', String(shows === what));
    }
    // A program has its frames below those of the host.
    $('by-process').disabled = shows === 'host';
  }

  get offCpu() {
    return this.shows === 'offCpu';
  }

  get shape() {
    const on = (id) => $(id).checked;
    const differs = Boolean(this.profile.base) && this.shows === 'onCpu';
    return { byProcess: on('by-process') && this.shows !== 'host', invert: on('invert'), change: differs && on('colour-change'), baseWidths: differs && on('base-widths') };
  }

  resized() {
    const width = this.canvas.parentElement.clientWidth;
    if (width !== this.width) {
      this.lay();
    }
  }

  /** Draws everything again after a change of the view. */
  update() {
    this.stacks = collect(this.profile, this.view, this.shows);
    $('flame-process').value = this.view.process === null ? '' : String(this.view.process);
    this.reshape();
  }

  /** The same stacks in another shape. */
  reshape() {
    this.notes();
    this.legend();
    this.lay();
    this.tellMatch();
  }

  lay() {
    this.width = this.canvas.parentElement.clientWidth;
    const shape = this.shape;
    const laid = layOut(this.profile, this.stacks, { ...shape, zoom: this.zoom, pixels: Math.max(300, this.width) });
    Object.assign(this, laid);
    // Frames that take the whole width because a frame above them is zoomed.
    let at = 0;
    this.zoomed = 0;
    for (const key of this.zoom) {
      at = this.frames[at].branches.find((place) => this.frames[place].key === key);
      if (at === undefined) {
        break;
      }
      this.zoomed = at;
    }
    this.focus = this.focus < this.frames.length ? this.focus : 0;
    this.path();
    this.findFrames();
    this.draw();
    this.table();
    this.tell();
    this.onChange();
  }

  /** Shows another graph: values as the page's address has them. */
  restore({ shows, invert, byProcess, search, zoom }) {
    const known = { offCpu: this.profile.offCpu, host: this.profile.hostLeaves }[shows];
    this.choose(known ? shows : 'onCpu');
    $('invert').checked = invert;
    $('by-process').checked = byProcess;
    $('search').value = search;
    this.zoom = zoom;
    this.search(search);
    this.update();
  }

  /** Finds the frames of a function, from another part of the page. */
  find(name) {
    $('search').value = name;
    this.search(name);
    $('flame').scrollIntoView();
    $('search').focus({ preventScroll: true });
  }

  name(frame) {
    if (frame.program >= 0) {
      return this.profile.programs.names[frame.program];
    }
    return frame.func < 0 ? 'all' : this.profile.functions.symbol[frame.func];
  }

  notes() {
    const { view, profile } = this;
    const [from, to] = view.seconds();
    const sorry = view.whole ? '' : ' The picked time does not apply here.';
    const time = view.whole && !profile.isPart ? 'the whole run' : `${moment(from, profile.step)} to ${moment(to, profile.step)} s`;
    const text = {
      onCpu: `Time on a CPU in ${time}, by samples: a sample represents its part of the exact time in the guest.`,
      offCpu: `Exact time of sleeps, by the kernel functions in which tasks slept, without kernel threads.${sorry}`,
      host: `Time of the vCPUs that were not halted, by samples: below each vCPU the functions of the VMM, KVM and the host's kernel, below them the guest's programs, or the place in the host. A program is directly below its vCPU where the host's kernel could not walk the stack.${sorry}`,
    }[this.shows];
    const base = this.shape.change ? ` Red takes more of the time than in ${profile.base.name}, blue less${view.whole ? '' : '; the base is its whole run'}.` : '';
    $('flame-note').textContent = text + base;
  }

  legend() {
    const target = $('flame-legend');
    if (this.shape.change) {
      target.replaceChildren(el('span', {}, '−10 %', el('i', { className: 'ramp', 'aria-hidden': 'true' }), '+10 % of all time'), el('span', {}, swatch('frame-match'), 'found'));
      return;
    }
    const entries = [['user code', 'frame-user'], ['kernel', 'frame-kernel'], ['process', 'frame-process']];
    if (this.shows !== 'onCpu') {
      entries.push([this.offCpu ? 'what for' : 'vCPU, program, place', 'frame-state']);
    }
    legend(target, [...entries, ['reason for missing frames', 'frame-reason'], ['found', 'frame-match']]);
  }

  fill(frame, shape) {
    if (this.wanted !== '' && this.found(frame)) {
      return theme.colour('frame-match');
    }
    if (shape.change && frame.above >= 0) {
      return this.changeColour(this.changeOf(frame));
    }
    if (frame.func < 0) {
      return theme.colour('frame-process');
    }
    const kind = { u: 'user', k: 'kernel', r: 'reason', s: 'state' }[this.profile.functions.kind[frame.func]];
    // Neighbours differ a little, so that they can be distinguished.
    const shade = (frame.func * 2654435761 >>> 0) % 7 - 3;
    const parts = theme.parts(`frame-${kind}`).map((part) => Math.max(0, Math.min(255, part + shade * 3)));
    return `rgb(${parts.join(' ')})`;
  }

  /** The share less that of the base. */
  changeOf(frame) {
    return frame.time / (this.all.time || 1) - frame.base / (this.all.base || 1);
  }

  changeColour(difference) {
    const strength = Math.min(1, Math.sqrt(Math.abs(difference) / 0.1));
    const [from, to] = [theme.parts('same'), theme.parts(difference > 0 ? 'more' : 'less')];
    return `rgb(${from.map((part, i) => Math.round(part + (to[i] - part) * strength)).join(' ')})`;
  }

  draw() {
    if (!this.frames) {
      return;
    }
    const shape = this.shape;
    const { context, width } = prepare(this.canvas, Math.max(3, this.rows) * ROW + 1);
    context.font = `12px ${getComputedStyle(document.body).getPropertyValue('--mono')}`;
    context.textBaseline = 'middle';
    this.frames.forEach((frame, at) => {
      const left = frame.x * width;
      const right = (frame.x + frame.width) * width;
      const top = frame.row * ROW;
      const fill = this.fill(frame, shape);
      context.fillStyle = fill;
      context.globalAlpha = frame.row < (this.frames[this.zoomed]?.row ?? 0) ? 0.6 : 1;
      context.fillRect(left, top, Math.max(right - left - (right - left > 3 ? 1 : 0), 0.5), ROW - 1);
      context.globalAlpha = 1;
      const text = fitted(context, this.name(frame), right - left - 8);
      if (text !== '') {
        context.fillStyle = textOn(fill);
        context.fillText(text, left + 4, top + ROW / 2);
      }
      const isShown = this.match >= 0 && at === this.matches[this.match];
      if (isShown || at === this.focus && document.activeElement === this.canvas.parentElement) {
        context.strokeStyle = theme.colour('focus');
        context.lineWidth = 2;
        context.strokeRect(left + 1, top + 1, Math.max(right - left - 2, 2), ROW - 3);
      }
    });
  }

  listen() {
    const { canvas } = this;
    const box = canvas.parentElement;
    canvas.addEventListener('pointermove', (event) => {
      const at = this.at(event);
      if (at < 0) {
        $('frame-tip').hidden = true;
        return;
      }
      const { left, top } = canvas.getBoundingClientRect();
      showTip($('frame-tip'), box, this.lines(this.frames[at]), event.clientX - left, event.clientY - top);
    });
    canvas.addEventListener('pointerleave', () => { $('frame-tip').hidden = true; });
    canvas.addEventListener('click', (event) => {
      const at = this.at(event);
      if (at >= 0) {
        this.zoomInto(at);
      }
    });
    box.addEventListener('focus', () => this.draw());
    box.addEventListener('blur', () => this.draw());
    box.addEventListener('keydown', (event) => this.key(event));
  }

  /** The frame at the pointer, or -1. */
  at(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const x = (event.clientX - left) / this.width;
    const row = Math.floor((event.clientY - top) / ROW);
    return this.frames.findIndex((frame) => frame.row === row && frame.x <= x && x < frame.x + frame.width);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    const frame = this.frames[this.focus];
    const siblings = this.frames[frame.above]?.branches ?? [0];
    const beside = (by) => siblings[siblings.indexOf(this.focus) + by] ?? this.focus;
    const moves = {
      ArrowUp: () => Math.max(0, frame.above),
      ArrowDown: () => frame.branches[0] ?? this.focus,
      ArrowLeft: () => beside(-1),
      ArrowRight: () => beside(1),
      Home: () => 0,
    };
    if (moves[event.key]) {
      event.preventDefault();
      this.focus = moves[event.key]();
      this.draw();
      this.tell();
    } else if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      this.zoomInto(this.focus);
    } else if (event.key === 'Backspace') {
      event.preventDefault();
      this.zoomTo(this.zoom.slice(0, -1));
    }
  }

  /** Keys from the root to a frame. */
  keys(at) {
    const keys = [];
    for (let place = at; this.frames[place].above >= 0; place = this.frames[place].above) {
      keys.unshift(this.frames[place].key);
    }
    return keys;
  }

  zoomInto(at) {
    this.zoomTo(this.keys(at));
  }

  zoomTo(keys) {
    this.zoom = keys;
    this.focus = 0;
    this.lay();
    this.focus = this.zoomed;
    this.draw();
    this.tell();
  }

  /** Ends the search; false if there was none. */
  endSearch() {
    const searched = $('search').value !== '';
    $('search').value = '';
    this.search('');
    return searched;
  }

  /** Shows all frames again; false if no frame was zoomed. */
  endZoom() {
    const zoomed = this.zoom.length > 0;
    if (zoomed) {
      this.zoomTo([]);
    }
    return zoomed;
  }

  /** The path to the zoomed frame, each step a button. */
  path() {
    const steps = [[0, []]];
    let at = this.zoomed;
    const chain = [];
    while (at > 0) {
      chain.unshift(at);
      at = this.frames[at].above;
    }
    chain.forEach((place) => steps.push([place, this.keys(place)]));
    const shown = steps.length > 9 ? [steps[0], ...steps.slice(-8)] : steps;
    $('path').replaceChildren(...(this.zoomed > 0 ? shown : []).map(([place, keys]) => {
      const button = el('button', { type: 'button', title: this.name(this.frames[place]) }, this.name(this.frames[place]));
      button.addEventListener('click', () => this.zoomTo(keys));
      return button;
    }));
  }

  /** The description of a frame, line by line. */
  lines(frame) {
    const { functions } = this.profile;
    const all = this.all.time || 1;
    const lines = [this.name(frame)];
    const module = frame.func >= 0 ? functions.modules[functions.module[frame.func]] : undefined;
    if (module !== undefined) {
      lines.push(module);
    }
    const times = this.offCpu ? counted(frame.count, 'time') : counted(frame.count, 'sample');
    lines.push(`${percent(frame.time / all)} of the shown time: ${duration(frame.time)}, ${times}`);
    if (frame.self > 0) {
      lines.push(`itself ${percent(frame.self / all)}`);
    }
    if (!this.offCpu && frame.above >= 0) {
      const { low, high } = wilson(frame.time / all, this.all.count);
      lines.push(`95 % interval ${intervalText(low, high)}, as if samples were independent`);
    }
    if (this.profile.base && this.shows === 'onCpu' && frame.above >= 0) {
      lines.push(`in the base ${percent(frame.base / (this.all.base || 1))}: ${change(this.changeOf(frame))}`);
    }
    return lines;
  }

  tell() {
    const frame = this.frames[this.focus];
    $('frame-detail').textContent = this.all.time > 0 || this.all.base > 0 ? this.lines(frame).join(' · ') : 'Nothing to show in this time.';
  }

  found(frame) {
    return frame.func >= 0 ? this.isMatch[frame.func] === 1 : frame.program >= 0 && this.programMatch[frame.program] === 1;
  }

  /** Marks functions with all words of `text` in their name or module. */
  search(text) {
    const { functions, programs } = this.profile;
    this.wanted = text.trim().toLowerCase();
    const is = (name) => Number(this.wanted !== '' && matches(name, this.wanted));
    this.isMatch = Uint8Array.from(functions.symbol, (symbol, i) => is(`${symbol} ${functions.modules[functions.module[i]] ?? ''}`));
    this.programMatch = Uint8Array.from(programs.names, is);
    this.match = -1;
    this.findFrames();
    this.tellMatch();
    this.draw();
    this.onChange();
  }

  /** Collects the frames that were found, the widest first. */
  findFrames() {
    const found = this.wanted === '' ? [] : this.frames.flatMap((frame, at) => (this.found(frame) ? [at] : []));
    // Of a recursion the outermost call stands for all.
    const inner = (at) => this.frames[at].above >= 0 && this.frames[this.frames[at].above].func === this.frames[at].func;
    this.matches = found.filter((at) => !inner(at)).sort((a, b) => this.frames[b].width - this.frames[a].width);
    $('next-match').hidden = this.matches.length === 0;
  }

  /** Goes to the next frame that was found, and shows its description. */
  nextMatch() {
    if (this.matches.length === 0) {
      return;
    }
    this.match = (this.match + 1) % this.matches.length;
    this.focus = this.matches[this.match];
    this.draw();
    this.tell();
    this.tellMatch();
    const top = this.frames[this.focus].row * ROW;
    this.canvas.parentElement.scrollTop = Math.max(0, top - this.canvas.parentElement.clientHeight / 2);
  }

  /** The part of the time with a match on its stack, each stack counted once. */
  tellMatch() {
    if (this.wanted === '') {
      $('match').textContent = '';
      return;
    }
    const { tree } = this.profile;
    const on = new Uint8Array(tree.size);
    for (let node = 1; node < tree.size; node++) {
      on[node] = on[tree.parent[node]] | this.isMatch[tree.func[node]];
    }
    let time = 0;
    let n = 0;
    const programs = this.shape.byProcess ? this.programMatch : new Uint8Array(this.programMatch.length);
    const { index } = this.stacks;
    for (const group of index.groups) {
      for (let i = group.begin; i < group.end; i++) {
        if (on[index.node[i]] === 1 || programs[group.program] === 1) {
          time += this.stacks.time[i];
          n += this.stacks.count[i];
        }
      }
    }
    const place = this.match < 0 ? '' : ` · frame ${count(this.match + 1)} of ${count(this.matches.length)}`;
    $('match').textContent = n > 0 ? `${percent(time / (this.all.time || 1))} of the shown time · ${duration(time)} · ${counted(n, this.offCpu ? 'time' : 'sample')}${place}` : 'not found';
  }

  /** The frames as a table, when it is open: each before its callees. */
  table() {
    if (!$('frame-table').open || !this.frames) {
      return;
    }
    const most = 300;
    const order = [];
    const open = [0];
    while (open.length > 0 && order.length < most) {
      const at = open.pop();
      order.push(this.frames[at]);
      open.push(...this.frames[at].branches.slice().reverse());
    }
    const all = this.all.time || 1;
    const head = el('tr', {}, ...[['Function', ''], ['Depth', 'number'], ['Time', 'number'], ['Share', 'number'], ['Itself', 'number'], [this.offCpu ? 'Times' : 'Samples', 'number']].map(([name, className]) => el('th', { scope: 'col', className }, name)));
    const rows = order.map((frame) => {
      const name = el('td', { className: 'name code', title: this.name(frame) }, this.name(frame));
      name.style.paddingLeft = `${0.6 + Math.min(frame.row, 40) * 0.7}rem`;
      return el('tr', {}, name, ...[count(frame.row), duration(frame.time), percent(frame.time / all), percent(frame.self / all), count(frame.count)].map((text) => el('td', { className: 'number' }, text)));
    });
    const table = $('frame-rows');
    table.replaceChildren(table.caption, el('thead', {}, head), el('tbody', {}, ...rows));
    $('frame-rows-note').textContent = order.length < this.frames.length ? `The first ${count(order.length)} of ${count(this.frames.length)} frames; zoom in for others.` : '';
  }
}

/** Black or white, whichever is read better on this colour (WCAG 2.1, relative luminance). */
function textOn(colour) {
  const [red, green, blue] = colour.match(/[\d.]+/g).slice(0, 3).map((part) => {
    const value = Number(part) / 255;
    return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? '#14171c' : '#ffffff';
}
