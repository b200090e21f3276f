// Frames of a flame graph and their positions. Frames that would be narrower than half a pixel are left out together
// with all their callees, so that the work is bounded by the visible frames.

/** Frames deeper than this are not drawn; zooming in shows them. */
const MOST_ROWS = 150;

/**
 * Whole stacks of entries, each once for each program that has it: in the order of programs, then of nodes. `of` says which
 * one each entry has, `groups` where those of each program are. Made once for all times that are picked.
 */
function indexStacks(profile, lists) {
  const { tree, roles, programs } = profile;
  const size = lists.reduce((sum, list) => sum + list.node.length, 0);
  const node = new Int32Array(size);
  const program = new Int32Array(size);
  let at = 0;
  for (const list of lists) {
    node.set(list.node, at);
    for (let i = 0; i < list.role.length; i++) {
      program[at + i] = programs.of[roles[list.role[i]][0]];
    }
    at += list.node.length;
  }
  const identity = Int32Array.from({ length: size }, (_, i) => i);
  const order = sortBy(sortBy(identity, node, tree.size), program, programs.names.length);
  const index = { of: new Int32Array(size), node: new Int32Array(size), groups: [], size: 0 };
  for (let i = 0; i < size; i++) {
    const entry = order[i];
    const last = i > 0 ? order[i - 1] : -1;
    if (last < 0 || program[entry] !== program[last]) {
      index.groups.push({ program: program[entry], begin: index.size, end: index.size });
    }
    if (last < 0 || program[entry] !== program[last] || node[entry] !== node[last]) {
      index.node[index.size++] = node[entry];
      index.groups[index.groups.length - 1].end = index.size;
    }
    index.of[entry] = index.size - 1;
  }
  index.node = index.node.slice(0, index.size);
  return index;
}

/** `list` in the order of keys, which are below `bound`; those with equal keys stay as they are. */
function sortBy(list, keys, bound) {
  const next = new Int32Array(bound + 1);
  for (let i = 0; i < list.length; i++) {
    next[keys[list[i]] + 1]++;
  }
  for (let key = 0; key < bound; key++) {
    next[key + 1] += next[key];
  }
  const sorted = new Int32Array(list.length);
  for (let i = 0; i < list.length; i++) {
    sorted[next[keys[list[i]]]++] = list[i];
  }
  return sorted;
}

/** Time, number and the base's time of each stack of an index in the picked time, and their sums up to each. */
function collect(profile, view, shows) {
  const name = `${shows}Index`;
  const whole = { offCpu: profile.offCpu, host: profile.hostLeaves }[shows] ?? null;
  const lists = whole ? [whole] : [profile.samples, ...(profile.baseLeaves ? [profile.baseLeaves] : [])];
  profile[name] ??= indexStacks(profile, lists);
  const index = profile[name];
  const compared = !whole && Boolean(profile.baseLeaves);
  const [time, count] = [0, 0].map(() => new Float64Array(index.size));
  // Without a base its sums are not kept: a million stacks take time.
  const base = new Float64Array(compared ? index.size : 0);
  const chosen = Uint8Array.from(profile.roles, ([who]) => Number(view.process === null || who === view.process));
  if (whole) {
    addLeaves(whole, index.of, 0, chosen, time, count);
  } else {
    addPicked(profile, view, index.of, chosen, time, count);
    if (compared) {
      const { of } = profile.programs;
      const namesake = Uint8Array.from(profile.roles, ([who]) => Number(view.process === null || of[who] === of[view.process]));
      addLeaves(profile.baseLeaves, index.of, profile.samples.node.length, namesake, base, new Float64Array(index.size));
    }
  }
  return { index, time, count, base, until: { time: sumsUpTo(time), count: sumsUpTo(count), base: sumsUpTo(base) } };
}

/** Adds the samples of the picked time. */
function addPicked({ samples, time: { vcpus } }, view, of, chosen, time, count) {
  const width = Math.max(1, vcpus.length);
  for (let cell = view.from * width; cell < view.to * width; cell++) {
    const weight = samples.weight[cell];
    for (let i = samples.start[cell]; i < samples.start[cell + 1]; i++) {
      if (chosen[samples.role[i]] === 1) {
        time[of[i]] += samples.count[i] * weight;
        count[of[i]] += samples.count[i];
      }
    }
  }
}

/** Adds leaves whose entries in `of` begin at `first`. */
function addLeaves(leaves, of, first, chosen, time, count) {
  for (let i = 0; i < leaves.node.length; i++) {
    if (chosen[leaves.role[i]] === 1) {
      time[of[first + i]] += leaves.weight[i];
      count[of[first + i]] += leaves.count[i];
    }
  }
}

/** At each index the sum of all before it. */
function sumsUpTo(list) {
  const sums = new Float64Array(list.length + 1);
  for (let i = 0; i < list.length; i++) {
    sums[i + 1] = sums[i] + list[i];
  }
  return sums;
}

/** Sums from `begin` to `end`. Sums of the same numbers in other orders differ in their last digits, so tiny ones count as 0. */
function between(until, begin, end) {
  const part = (sums) => {
    if (sums.length === 1) {
      return 0;
    }
    const sum = sums[end] - sums[begin];
    return sum > sums[sums.length - 1] * 1e-12 ? sum : 0;
  };
  return { time: part(until.time), count: part(until.count), base: part(until.base) };
}

/** The first place from `begin` on, before `end`, whose node is not below `node`. */
function lowerBound(nodes, node, begin, end) {
  let low = begin;
  let high = end;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (nodes[middle] < node) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/**
 * Branches of stacks from the outermost function inwards. What a node calls has the numbers that follow its own, up to
 * `tree.end`, so that sums up to each place tell the time of any branch.
 */
class Calls {
  constructor(tree, nodes, until, { begin, end }) {
    Object.assign(this, { tree, nodes, until, begin, end });
  }

  /** Of all programs together: places are nodes. */
  static ofAll(tree, stacks) {
    const sums = ['time', 'count', 'base'].map((what) => {
      if (stacks[what].length === 0) {
        return sumsUpTo(stacks[what]);
      }
      const own = new Float64Array(tree.size);
      stacks.index.node.forEach((node, i) => { own[node] += stacks[what][i]; });
      return sumsUpTo(own);
    });
    const until = { time: sums[0], count: sums[1], base: sums[2] };
    return new Calls(tree, null, until, { begin: 0, end: tree.size });
  }

  place(node) {
    return this.nodes === null ? node : lowerBound(this.nodes, node, this.begin, this.end);
  }

  root() {
    return { node: 0, func: -1, self: 0, ...between(this.until, this.begin, this.end) };
  }

  /** What `item` calls, as far as `wide` says of its time and the base's that it can be seen. */
  children(item, wide) {
    const { first, next, end, func } = this.tree;
    const list = [];
    for (let node = first[item.node]; node !== 0; node = next[node]) {
      const begin = this.place(node);
      const sum = between(this.until, begin, this.place(end[node]));
      if (wide(sum.time, sum.base)) {
        const own = this.place(node + 1);
        list.push({ node, func: func[node], self: between(this.until, begin, own).time, ...sum });
      }
    }
    return list;
  }
}

/** Branches of stacks from the innermost function outwards: its callers. */
class Callers {
  constructor(tree, stacks, group) {
    Object.assign(this, { tree, stacks, group });
    this.slot = new Int32Array(tree.functions);
  }

  root() {
    const { stacks, group } = this;
    const places = new Int32Array(group.end - group.begin);
    let size = 0;
    for (let i = group.begin; i < group.end; i++) {
      if (stacks.time[i] > 0 || stacks.base[i] > 0) {
        places[size++] = i;
      }
    }
    const at = new Int32Array(size);
    for (let i = 0; i < size; i++) {
      at[i] = stacks.index.node[places[i]];
    }
    return { places: places.subarray(0, size), at, func: -1, self: 0, ...between(stacks.until, group.begin, group.end) };
  }

  /** Groups the stacks of `item` by the function that calls it. */
  children(item, wide) {
    const { tree, stacks, slot } = this;
    const sums = [];
    const slots = new Int32Array(item.places.length);
    for (let i = 0; i < item.places.length; i++) {
      const node = item.at[i];
      if (node > 0) {
        const func = tree.func[node];
        if (slot[func] === 0) {
          sums.push({ func, time: 0, count: 0, base: 0, self: 0, size: 0 });
          slot[func] = sums.length;
        }
        slots[i] = slot[func];
        const sum = sums[slot[func] - 1];
        const place = item.places[i];
        sum.time += stacks.time[place];
        sum.count += stacks.count[place];
        sum.base += stacks.base.length > 0 ? stacks.base[place] : 0;
        sum.size++;
      }
    }
    sums.forEach((sum) => { slot[sum.func] = 0; });
    return this.split(item, slots, sums, wide);
  }

  /** The groups that can be seen, each with its stacks. */
  split(item, slots, sums, wide) {
    for (const sum of sums) {
      if (wide(sum.time, sum.base)) {
        sum.places = new Int32Array(sum.size);
        sum.at = new Int32Array(sum.size);
        sum.size = 0;
      }
    }
    for (let i = 0; i < slots.length; i++) {
      const sum = slots[i] > 0 ? sums[slots[i] - 1] : null;
      if (sum?.places) {
        sum.places[sum.size] = item.places[i];
        sum.at[sum.size++] = this.tree.parent[item.at[i]];
      }
    }
    return sums.filter((sum) => sum.places);
  }
}

/**
 * Lays out. Returns frames with `x` and `width` as parts of the whole, `row`, the places of the frame `above` and of its
 * `branches`, and the stacks that they represent. `zoom` is a list of keys of frames that take the whole width.
 */
function layOut(profile, stacks, { byProcess, invert, baseWidths, zoom, pixels }) {
  const { tree, programs } = profile;
  const everything = { begin: 0, end: stacks.index.size };
  const all = between(stacks.until, 0, stacks.index.size);
  const weigh = (time, base) => (baseWidths ? base : time);
  const size = (item) => weigh(item.time, item.base);
  const frames = [];
  const branches = (group) => (invert ? new Callers(tree, stacks, group) : new Calls(tree, stacks.index.node, stacks.until, group));
  const state = { frames, size, weigh, deepest: 0, least: 0.5 / pixels };

  const root = { key: 'all', func: -1, program: -1, x: 0, width: 1, row: 0, above: -1, branches: [], self: 0, ...all };
  frames.push(root);
  if (size(root) > 0) {
    if (byProcess) {
      layPrograms(state, { stacks, programs, branches, zoom });
    } else {
      const source = invert ? branches(everything) : Calls.ofAll(tree, stacks);
      layBranches(state, source, source.root(), 0, zoom);
    }
  }
  return { frames, all, rows: state.deepest + 1 };
}

/** A row of programs, and the branches of each. */
function layPrograms(state, { stacks, programs, branches, zoom }) {
  const { size } = state;
  let items = stacks.index.groups.map((group) => ({ ...group, ...between(stacks.until, group.begin, group.end), func: -1, self: 0, key: `p${programs.names[group.program]}` }));
  items = items.filter((item) => size(item) > 0);
  const wanted = zoom[0];
  const alone = wanted === undefined ? undefined : items.find((item) => item.key === wanted);
  place(state, 0, alone ? [alone] : items, Boolean(alone)).forEach(({ at, item }) => {
    const source = branches(item);
    layBranches(state, source, source.root(), at, alone ? zoom.slice(1) : []);
  });
}

/** The branches below the frame at `above`, without recursion: stacks are as deep as the guest makes them. */
function layBranches(state, source, item, above, zoom) {
  const open = [{ item, above, zoom }];
  while (open.length > 0) {
    const { item: parent, above: at, zoom: rest } = open.pop();
    const frame = state.frames[at];
    if (frame.row >= MOST_ROWS) {
      continue;
    }
    const scale = frame.width / (state.size(frame) || 1);
    const wide = (time, base) => state.weigh(time, base) * scale >= state.least;
    const all = source.children(parent, rest.length > 0 ? (time, base) => state.weigh(time, base) > 0 : wide);
    all.forEach((child) => { child.key = `f${child.func}`; });
    const alone = rest.length > 0 ? all.find((child) => child.key === rest[0]) : undefined;
    const placed = place(state, at, alone ? [alone] : all, Boolean(alone));
    for (const { at: next, item: child } of placed) {
      open.push({ item: child, above: next, zoom: alone ? rest.slice(1) : [] });
    }
  }
}

/** Puts items side by side below the frame `above`, the largest first; `whole`: the only one takes the whole width. */
function place(state, above, items, whole) {
  const { size } = state;
  const frame = state.frames[above];
  const scale = whole ? 0 : frame.width / (size(frame) || 1);
  let x = frame.x;
  items.sort((a, b) => size(b) - size(a) || a.func - b.func);
  const placed = [];
  for (const item of items) {
    const width = whole ? frame.width : size(item) * scale;
    if (width >= state.least) {
      const { key, func, program = -1, time, count: n, base, self } = item;
      placed.push({ at: state.frames.length, item });
      frame.branches.push(state.frames.length);
      state.frames.push({ key, func, program, time, count: n, base, self, x, width, row: frame.row + 1, above, branches: [] });
    }
    x += width;
  }
  if (placed.length > 0) {
    state.deepest = Math.max(state.deepest, frame.row + 1);
  }
  return placed;
}
