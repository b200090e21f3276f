// Use of CPUs over time by programs, their processes and threads: lanes of the timeline, from the samples.

/** Parts of a lane that are shown at first, and that its button adds. */
const LANES_AT_ONCE = 8;
/** Limit of lanes. */
const MOST_LANES = 200;

/**
 * Programs with their processes and threads, most time first. A lane has `key`, `name`, `kind` of its process, `time` in s,
 * its `threads` by number, the `row` of its process if it is only one, the number of `cpus` that it can use, and `parts`.
 */
function activityTree(profile) {
  const { threads, processes, programs, time: { vcpus } } = profile;
  const times = threadTimes(profile);
  const all = new Map();
  const lane = (key, parent, values) => {
    if (!all.has(key)) {
      all.set(key, { key, time: 0, threads: [], parts: [], ...values });
      parent?.parts.push(all.get(key));
    }
    return all.get(key);
  };
  const root = lane('', null, {});
  times.forEach((time, thread) => {
    if (time > 0) {
      const row = threads.row[thread];
      const process = processes[row];
      const program = lane(`p${programs.of[row]}`, root, { name: commName(process), kind: process.kind, row });
      const own = lane(`r${row}`, program, { name: processName(process), kind: process.kind, row });
      const tid = threads.tid[thread];
      const name = `${threads.name[thread] || process.comm}${tid === null ? '' : ` ${tid}`}`;
      const last = lane(`t${thread}`, own, { name, kind: process.kind, row });
      [root, program, own, last].forEach((at) => { at.time += time; at.threads.push(thread); });
    }
  });
  for (const at of all.values()) {
    at.cpus = Math.max(1, Math.min(vcpus.length, at.threads.length));
    at.parts.sort((a, b) => b.time - a.time || a.name.localeCompare(b.name));
  }
  for (const at of all.values()) {
    if (at.key.startsWith('p') && at.parts.length > 1) {
      at.name = `${at.name}, ${count(at.parts.length)} processes`;
      at.row = null;
    }
  }
  // A level with one lane adds nothing.
  all.forEach((at) => { at.parts = withoutSingles(at.parts); });
  return root;
}

/** The parts, or those of the only one. */
function withoutSingles(parts) {
  return parts.length === 1 && !parts[0].key.startsWith('p') ? withoutSingles(parts[0].parts) : parts;
}

/** CPU time of each thread, s. */
function threadTimes({ samples, roles, threads, time: { vcpus, buckets } }) {
  const times = new Float64Array(threads.row.length);
  for (let cell = 0; cell < buckets * Math.max(1, vcpus.length); cell++) {
    for (let i = samples.start[cell]; i < samples.start[cell + 1]; i++) {
      times[roles[samples.role[i]][2]] += samples.count[i] * samples.weight[cell];
    }
  }
  return times;
}

class Activity {
  constructor(profile) {
    this.profile = profile;
    this.root = activityTree(profile);
    /** Keys of lanes whose parts are shown. */
    this.open = new Set();
    /** Number of parts that are shown, by the key of their lane. */
    this.limits = new Map();
    /** Time in user code and other time up to each bucket, s, by the key of the lane. */
    this.sums = new Map();
  }

  /** What is shown from top to bottom: lanes with their depth, and places for more of them. */
  shown() {
    const list = [];
    const add = (of, depth) => {
      const limit = this.limits.get(of.key) ?? LANES_AT_ONCE;
      for (const lane of of.parts.slice(0, limit)) {
        if (list.length < MOST_LANES) {
          list.push({ lane, depth });
          if (this.open.has(lane.key)) {
            add(lane, depth + 1);
          }
        }
      }
      if (of.parts.length > limit && list.length < MOST_LANES) {
        list.push({ of, more: of.parts.length - limit, depth });
      }
    };
    add(this.root, 0);
    this.prepare(list.flatMap(({ lane }) => (lane ? [lane] : [])));
    return list;
  }

  /** Shows the parts of a lane, or hides them. */
  toggle(lane) {
    if (!this.open.delete(lane.key)) {
      this.open.add(lane.key);
    }
  }

  showMore(lane) {
    this.limits.set(lane.key, (this.limits.get(lane.key) ?? LANES_AT_ONCE) + 2 * LANES_AT_ONCE);
  }

  /** Adds up the samples of these lanes, and forgets the others. */
  prepare(lanes) {
    const { samples, roles, threads, time: { buckets, vcpus } } = this.profile;
    const keys = new Set(lanes.map((lane) => lane.key));
    [...this.sums.keys()].filter((key) => !keys.has(key)).forEach((key) => this.sums.delete(key));
    const missing = lanes.filter((lane) => !this.sums.has(lane.key));
    if (missing.length === 0) {
      return;
    }
    const sumsOf = Array.from(threads.row, () => []);
    for (const lane of missing) {
      const sums = { user: new Float64Array(buckets + 1), other: new Float64Array(buckets + 1) };
      this.sums.set(lane.key, sums);
      lane.threads.forEach((thread) => sumsOf[thread].push(sums));
    }
    const width = Math.max(1, vcpus.length);
    for (let cell = 0; cell < buckets * width; cell++) {
      const at = Math.floor(cell / width) + 1;
      for (let i = samples.start[cell]; i < samples.start[cell + 1]; i++) {
        const [, mode, thread] = roles[samples.role[i]];
        for (const sums of sumsOf[thread]) {
          (mode === USER ? sums.user : sums.other)[at] += samples.count[i] * samples.weight[cell];
        }
      }
    }
    for (const lane of missing) {
      const { user, other } = this.sums.get(lane.key);
      for (let at = 1; at <= buckets; at++) {
        user[at] += user[at - 1];
        other[at] += other[at - 1];
      }
    }
  }

  /** Buckets of one column of a lane where a pixel is `perPixel` s wide. */
  columnBuckets(perPixel) {
    return Math.max(1, Math.round(2 * perPixel / this.profile.step));
  }

  /**
   * Use of a lane from bucket `begin` to before `end`, as parts of the CPUs that it can use: in user code and elsewhere.
   * A short time may have more samples than its length stands for: that is all of it.
   */
  use(lane, begin, end) {
    const { user, other } = this.sums.get(lane.key);
    const times = [user, other].map((sums) => sums[end] - sums[begin]);
    const whole = Math.max((end - begin) * this.profile.step * lane.cpus, times[0] + times[1]);
    return times.map((time) => time / (whole || 1));
  }

  /** Draws a lane; `x` places a time. */
  draw(context, { width, x, from, to }, lane, top, height) {
    const { begin, step, unsampled, time: { buckets } } = this.profile;
    context.fillStyle = theme.colour('raised');
    context.fillRect(0, top, width, height);
    const size = this.columnBuckets((to - from) / width);
    const first = Math.max(0, Math.floor((from - begin) / step / size) * size);
    const colours = [theme.colour('user'), theme.colour(lane.kind === 'interrupt' ? 'interrupt' : 'kernel')];
    const hatch = hatched(context);
    for (let at = first; at < buckets && begin + at * step < to; at += size) {
      const end = Math.min(at + size, buckets);
      const left = x(begin + at * step);
      const right = Math.max(x(begin + end * step), left + 0.5);
      if (unsampled[at] === 1 && unsampled[end - 1] === 1) {
        context.fillStyle = hatch;
        context.fillRect(left, top, right - left, height);
        continue;
      }
      let y = top + height;
      this.use(lane, at, end).forEach((part, i) => {
        const tall = part * height;
        if (tall > 0) {
          context.fillStyle = colours[i];
          context.fillRect(left, y - tall, right - left, tall);
          y -= tall;
        }
      });
    }
  }

  /** Lines about a lane at a time. */
  describe(lane, time, perPixel) {
    const { begin, step, time: { buckets } } = this.profile;
    const size = this.columnBuckets(perPixel);
    const at = Math.max(0, Math.min(buckets - 1, Math.floor((time - begin) / step / size) * size));
    const end = Math.min(at + size, buckets);
    const [user, other] = this.use(lane, at, end);
    const of = lane.cpus === 1 ? 'a CPU' : counted(lane.cpus, 'CPU');
    return [`${lane.name}: ${percent(user + other)} of ${of} for ${duration((end - at) * step)}`, `User code ${percent(user)}, ${lane.kind === 'interrupt' ? 'interrupts' : 'kernel'} ${percent(other)}`];
  }
}
