// The chosen part of the profile: picked time and process. Parts of the page register for changes.

/** The time that is picked is from the beginning of bucket `from` to that of bucket `to`. */
class View {
  constructor(profile) {
    this.profile = profile;
    this.from = 0;
    this.to = profile.time.buckets;
    /** Row of the processes that alone is shown, or null. */
    this.process = null;
    this.listeners = [];
    this.waiting = false;
    this.sumsOf = null;
  }

  /** Calls `listener` after each change, all in one frame. */
  onChange(listener) {
    this.listeners.push(listener);
  }

  get whole() {
    return this.from === 0 && this.to === this.profile.time.buckets;
  }

  /** Picks a time by buckets; at least one. */
  pick(from, to) {
    const last = this.profile.time.buckets;
    const begin = Math.max(0, Math.min(Math.round(from), last - 1));
    const end = Math.max(begin + 1, Math.min(Math.round(to), last));
    if (begin !== this.from || end !== this.to) {
      this.from = begin;
      this.to = end;
      this.changed();
    }
  }

  /** Picks a time by s; buckets that it touches. */
  pickSeconds(from, to) {
    const { begin, step } = this.profile;
    // A time that was rounded for display is that of a bucket's end.
    const slack = 1e-6;
    this.pick(Math.floor((from - begin) / step + slack), Math.ceil((to - begin) / step - slack));
  }

  pickAll() {
    this.pick(0, this.profile.time.buckets);
  }

  /** Shows one process alone, or all. */
  only(process) {
    if (process !== this.process) {
      this.process = process;
      this.changed();
    }
  }

  changed() {
    this.sumsOf = null;
    if (!this.waiting) {
      this.waiting = true;
      requestAnimationFrame(() => {
        this.waiting = false;
        this.listeners.forEach((listener) => listener());
      });
    }
  }

  /** The picked time in s. */
  seconds() {
    const { begin, step } = this.profile;
    return [begin + this.from * step, begin + this.to * step];
  }

  /** Sums over the picked time, see `sums`. */
  sums() {
    this.sumsOf ??= sums(this.profile, this.from, this.to, this.process);
    return this.sumsOf;
  }
}

/**
 * Time and samples of a segment of time: of each process (`whoTime`, `whoUser`, `whoCount`), of each node itself
 * (`nodeTime`, `nodeCount`, of `only` this process if one is given), and of all.
 */
function sums(profile, from, to, only) {
  const { samples, roles, tree, processes } = profile;
  const result = {
    whoTime: new Float64Array(processes.length),
    whoUser: new Float64Array(processes.length),
    whoCount: new Float64Array(processes.length),
    nodeTime: new Float64Array(tree.size),
    nodeCount: new Float64Array(tree.size),
    time: 0,
    count: 0,
    shownTime: 0,
    shownCount: 0,
  };
  const whoOf = Int32Array.from(roles, ([who]) => who);
  const isUser = Uint8Array.from(roles, ([, mode]) => Number(mode === USER));
  const vcpus = Math.max(1, profile.time.vcpus.length);
  for (let cell = from * vcpus; cell < to * vcpus; cell++) {
    const weight = samples.weight[cell];
    for (let i = samples.start[cell]; i < samples.start[cell + 1]; i++) {
      const role = samples.role[i];
      const who = whoOf[role];
      const n = samples.count[i];
      const time = n * weight;
      result.whoTime[who] += time;
      result.whoCount[who] += n;
      if (isUser[role] === 1) {
        result.whoUser[who] += time;
      }
      result.time += time;
      result.count += n;
      if (only === null || who === only) {
        result.nodeTime[samples.node[i]] += time;
        result.nodeCount[samples.node[i]] += n;
        result.shownTime += time;
        result.shownCount += n;
      }
    }
  }
  return result;
}

/** The mode of user code as the block numbers modes (export/src/html/who.rs). */
const USER = 0;

/** Adds what each node calls to it: callers have smaller numbers. */
function addUp(tree, own) {
  const total = own.slice();
  for (let node = tree.size - 1; node > 0; node--) {
    total[tree.parent[node]] += total[node];
  }
  return total;
}
