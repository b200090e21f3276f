// The subsecond heat map: a column for each second of the shown time, a row for each part of a second (Gregg and Spier,
// FlameScope, 2018). Its colour is the use of the CPUs. The picked range goes down its columns, one after the other.

const HEAT = { row: 5, top: 2 };

class HeatMap {
  constructor(profile, view, timeline) {
    Object.assign(this, { profile, view, timeline });
    const ms = Math.round(profile.step * 1000);
    /** Buckets of a column: those of a second, if they divide it so that it has 20 or 50. */
    this.rows = ms === 50 ? 20 : 50;
    this.canvas = $('heat-canvas');
    this.element = $('heat');
    const column = this.rows * profile.step;
    $('heat-note').textContent = `Use of ${counted(Math.max(1, profile.time.vcpus.length), 'CPU')} by what the flame graph shows. Each column is ${duration(column)}, each row ${duration(profile.step)}, from top to bottom. Drag over cells to pick their time; the map shows the time that the timeline shows.`;
    $('heat-rows').replaceChildren(el('span', {}, '0 s'), el('span', {}, duration(column)));
    timeline.onZoom = () => this.draw();
    view.onChange(() => this.update());
    theme.listeners.push(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
    this.listen();
    this.element.addEventListener('keydown', (event) => this.key(event));
    this.update();
  }

  /** Busy time of each bucket, s, of the chosen process if one is chosen. */
  busy() {
    const { profile, view } = this;
    if (this.busyOf !== view.process || !this.times) {
      this.busyOf = view.process;
      this.times = busyTimes(profile, view.process);
    }
    return this.times;
  }

  /** Part of the CPUs' time that is used from bucket `from` to before `to`; an estimate of more is all of it. */
  use(from, to) {
    const { profile } = this;
    const times = this.busy();
    let sum = 0;
    for (let i = from; i < to; i++) {
      sum += times[i];
    }
    return Math.min(1, sum / ((to - from) * profile.step * Math.max(1, profile.time.vcpus.length)));
  }

  update() {
    const { view, profile } = this;
    const [from, to] = view.seconds();
    $('heat-detail').textContent = `${moment(from, profile.step)} to ${moment(to, profile.step)} s: ${percent(this.use(view.from, view.to))} in use`;
    this.draw();
  }

  /** First column and number of columns of the time that the timeline shows. */
  columns() {
    const { profile: { begin, step }, timeline, rows } = this;
    const [from, to] = timeline.zoom.map((s) => (s - begin) / step / rows);
    const first = Math.floor(from + 1e-9);
    return { first, size: Math.max(1, Math.ceil(to - 1e-9) - first) };
  }

  draw() {
    const { profile: { unsampled, time: { buckets } }, rows } = this;
    const { context, width } = prepare(this.canvas, rows * HEAT.row + 2 * HEAT.top);
    const { first, size } = this.columns();
    const wide = width / size;
    const gap = wide > 6 ? 1 : 0;
    const hatch = hatched(context);
    for (let at = first * rows; at < Math.min(buckets, (first + size) * rows); at++) {
      const left = (Math.floor(at / rows) - first) * wide;
      const top = HEAT.top + (at % rows) * HEAT.row;
      context.globalAlpha = 1;
      context.fillStyle = unsampled[at] === 1 ? hatch : theme.colour('raised');
      context.fillRect(left, top, wide - gap, HEAT.row);
      const use = this.use(at, at + 1);
      if (use > 0) {
        context.globalAlpha = use;
        context.fillStyle = theme.colour('heat');
        context.fillRect(left, top, wide - gap, HEAT.row);
      }
    }
    context.globalAlpha = 1;
    if (!this.view.whole) {
      this.drawPicked(context, first, size, wide);
    }
  }

  /** Veils what is not picked, and draws a line around the rest of each column. */
  drawPicked(context, first, size, wide) {
    const { view, rows } = this;
    for (let column = first; column < first + size; column++) {
      const [from, to] = [view.from, view.to].map((at) => Math.max(0, Math.min(rows, at - column * rows)) * HEAT.row);
      const left = (column - first) * wide;
      context.fillStyle = theme.colour('veil');
      context.fillRect(left, HEAT.top, wide, from);
      context.fillRect(left, HEAT.top + to, wide, rows * HEAT.row - to);
      if (to > from) {
        context.strokeStyle = theme.colour('focus');
        context.lineWidth = 2;
        context.strokeRect(left + 1, HEAT.top + from, Math.max(1, wide - 2), to - from);
      }
    }
  }

  /** The bucket at the pointer, at most one beyond the last. */
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const { first, size } = this.columns();
    const column = Math.max(0, Math.min(size - 1, Math.floor((event.clientX - box.left) / (box.width / size))));
    const row = Math.max(0, Math.min(this.rows - 1, Math.floor((event.clientY - box.top - HEAT.top) / HEAT.row)));
    return Math.min((first + column) * this.rows + row, this.profile.time.buckets - 1);
  }

  listen() {
    const { canvas, view } = this;
    let begin = null;
    canvas.addEventListener('pointerdown', (event) => {
      if (event.button === 0) {
        begin = this.at(event);
        canvas.setPointerCapture(event.pointerId);
        view.pick(begin, begin + 1);
      }
    });
    canvas.addEventListener('pointermove', (event) => {
      const at = this.at(event);
      if (begin !== null) {
        view.pick(Math.min(begin, at), Math.max(begin, at) + 1);
      }
      this.hover(event, at);
    });
    for (const end of ['pointerup', 'pointercancel']) {
      canvas.addEventListener(end, () => { begin = null; });
    }
    canvas.addEventListener('pointerleave', () => { $('heat-tip').hidden = true; });
    canvas.addEventListener('dblclick', () => view.pickAll());
  }

  hover(event, at) {
    const { begin, step, unsampled } = this.profile;
    const box = this.canvas.getBoundingClientRect();
    const use = unsampled[at] === 1 ? 'not sampled' : `${percent(this.use(at, at + 1))} in use`;
    const lines = [`${moment(begin + at * step, step)} to ${moment(begin + (at + 1) * step, step)} s`, use];
    showTip($('heat-tip'), this.canvas.parentElement, lines, event.clientX - box.left, event.clientY - box.top);
  }

  /** Arrows move the picked range by a row or a column, with Shift its end. */
  key(event) {
    const { view, rows, profile: { time: { buckets } } } = this;
    const by = { ArrowUp: -1, ArrowDown: 1, ArrowLeft: -rows, ArrowRight: rows }[event.key];
    if (by === undefined || event.ctrlKey || event.metaKey || event.altKey) {
      return;
    }
    event.preventDefault();
    if (view.whole) {
      // The first cell that the map shows.
      const at = Math.min(this.columns().first * rows, buckets - 1);
      view.pick(at, at + 1);
    } else if (event.shiftKey) {
      view.pick(view.from, view.to + by);
    } else {
      const room = Math.max(-view.from, Math.min(by, buckets - view.to));
      view.pick(view.from + room, view.to + room);
    }
  }
}

/** Busy time of each bucket on all vCPUs, s: of `only` this process if one is given. */
function busyTimes({ samples, roles, time: { buckets, vcpus } }, only) {
  const times = new Float64Array(buckets);
  const width = Math.max(1, vcpus.length);
  for (let cell = 0; cell < buckets * width; cell++) {
    for (let i = samples.start[cell]; i < samples.start[cell + 1]; i++) {
      if (only === null || roles[samples.role[i]][0] === only) {
        times[Math.floor(cell / width)] += samples.count[i] * samples.weight[cell];
      }
    }
  }
  return times;
}
