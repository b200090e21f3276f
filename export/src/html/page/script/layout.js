// Which frames a flame graph shows, and where. Frames that would be narrower than half a pixel are left out together
// with all that they call, so that the work is bounded by what can be seen.

/** Frames deeper than this are not drawn; zooming in shows them. */
const MOST_ROWS = 150;

/**
 * Whole stacks to lay out, from the samples of a picked time or from a list: node, program and time of each, and where a
 * base is given its stacks, too, with their time as `base`.
 */
function collect(profile, view, offCpu) {
  const lists = [];
  if (offCpu) {
    lists.push([profile.offCpu, false]);
  } else {
    lists.push([pickedLeaves(profile, view.from, view.to), false]);
    if (profile.baseLeaves) {
      lists.push([profile.baseLeaves, true]);
    }
  }
  const size = lists.reduce((sum, [list]) => sum + list.node.length, 0);
  const stacks = { size: 0, node: new Int32Array(size), program: new Int32Array(size), time: new Float64Array(size), count: new Float64Array(size), base: new Float64Array(size) };
  for (const [list, isBase] of lists) {
    for (let i = 0; i < list.node.length; i++) {
      const [who] = profile.roles[list.role[i]];
      if (view.process !== null && who !== view.process && !(isBase && profile.programs.of[who] === profile.programs.of[view.process])) {
        continue;
      }
      const at = stacks.size++;
      stacks.node[at] = list.node[i];
      stacks.program[at] = profile.programs.of[who];
      stacks[isBase ? 'base' : 'time'][at] = list.weight[i];
      stacks.count[at] = isBase ? 0 : list.count[i];
    }
  }
  return stacks;
}

/** The samples of a picked time with the time of each entry. */
function pickedLeaves({ samples, time }, from, to) {
  const vcpus = Math.max(1, time.vcpus.length);
  const begin = samples.start[from * vcpus];
  const end = samples.start[to * vcpus];
  const weight = new Float64Array(end - begin);
  for (let cell = from * vcpus; cell < to * vcpus; cell++) {
    for (let i = samples.start[cell]; i < samples.start[cell + 1]; i++) {
      weight[i - begin] = samples.count[i] * samples.weight[cell];
    }
  }
  return { node: samples.node.subarray(begin, end), role: samples.role.subarray(begin, end), count: samples.count.subarray(begin, end), weight };
}

/** The stacks of each program, most time first: places in `order` from `begin` to `end`. */
function byProgram(stacks, programs) {
  const sizes = new Int32Array(programs + 1);
  for (let i = 0; i < stacks.size; i++) {
    sizes[stacks.program[i] + 1]++;
  }
  for (let p = 0; p < programs; p++) {
    sizes[p + 1] += sizes[p];
  }
  const order = new Int32Array(stacks.size);
  const next = sizes.slice();
  for (let i = 0; i < stacks.size; i++) {
    order[next[stacks.program[i]]++] = i;
  }
  return { order, groups: Array.from({ length: programs }, (_, program) => ({ program, begin: sizes[program], end: sizes[program + 1] })).filter((group) => group.end > group.begin) };
}

/** Sums of the stacks at these places of `order`. */
function sumOf(stacks, order, { begin, end }) {
  const sum = { time: 0, count: 0, base: 0 };
  for (let i = begin; i < end; i++) {
    sum.time += stacks.time[order[i]];
    sum.count += stacks.count[order[i]];
    sum.base += stacks.base[order[i]];
  }
  return sum;
}

/** Branches of stacks from the outermost function inwards. */
class Calls {
  constructor(tree, stacks, order, group) {
    this.tree = tree;
    const own = ['time', 'count', 'base'].map((what) => {
      const sums = new Float64Array(tree.size);
      for (let i = group.begin; i < group.end; i++) {
        sums[stacks.node[order[i]]] += stacks[what][order[i]];
      }
      return sums;
    });
    this.own = own[0];
    [this.time, this.count, this.base] = own.map((sums) => addUp(tree, sums));
  }

  root() {
    return this.item(0);
  }

  item(node) {
    return { node, func: this.tree.func[node], time: this.time[node], count: this.count[node], base: this.base[node], self: this.own[node] };
  }

  /** What `item` calls, as far as `wide` says of its time and the base's that it can be seen. */
  children(item, wide) {
    const { first, next } = this.tree;
    const list = [];
    for (let node = first[item.node]; node !== 0; node = next[node]) {
      if (wide(this.time[node], this.base[node])) {
        list.push(this.item(node));
      }
    }
    return list;
  }
}

/** Branches of stacks from the innermost function outwards: who calls it. */
class Callers {
  constructor(tree, stacks, order, group) {
    this.tree = tree;
    this.stacks = stacks;
    this.places = order.subarray(group.begin, group.end);
    this.sum = sumOf(stacks, order, group);
    this.slot = new Int32Array(tree.functions);
  }

  root() {
    const at = Int32Array.from(this.places, (i) => this.stacks.node[i]);
    return { places: this.places, at, func: -1, self: 0, ...this.sum };
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
        sum.base += stacks.base[place];
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
 * `branches`, and what they stand for. `zoom` is a list of keys of frames that take the whole width.
 */
function layOut(profile, stacks, { byProcess, invert, baseWidths, zoom, pixels }) {
  const { tree, programs } = profile;
  const everything = { program: -1, begin: 0, end: stacks.size };
  const { order, groups } = byProgram(stacks, programs.names.length);
  const all = sumOf(stacks, order, everything);
  const size = (item) => (baseWidths ? item.base : item.time);
  const frames = [];
  const branches = (group) => (invert ? new Callers(tree, stacks, order, group) : new Calls(tree, stacks, order, group));
  const state = { frames, size, deepest: 0, least: 0.5 / pixels };

  const root = { key: 'all', func: -1, program: -1, x: 0, width: 1, row: 0, above: -1, branches: [], self: 0, ...all };
  frames.push(root);
  if (size(root) > 0) {
    if (byProcess) {
      layPrograms(state, { groups, order, stacks, programs, branches, zoom });
    } else {
      const source = branches(everything);
      layBranches(state, source, source.root(), 0, zoom);
    }
  }
  return { frames, all, rows: state.deepest + 1 };
}

/** A row of programs, and the branches of each. */
function layPrograms(state, { groups, order, stacks, programs, branches, zoom }) {
  const { size } = state;
  let items = groups.map((group) => ({ ...group, ...sumOf(stacks, order, group), func: -1, self: 0, key: `p${programs.names[group.program]}` }));
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
    const wide = (time, base) => state.size({ time, base }) * scale >= state.least;
    const all = source.children(parent, rest.length > 0 ? (time, base) => state.size({ time, base }) > 0 : wide);
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
