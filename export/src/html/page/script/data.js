// The profile, from the block in the page: base64 of a zlib stream of a length, JSON and binary sections.
// export/src/html/block.rs writes it and draws the layout.

/** Unpacks the block. */
async function unpack() {
  if (typeof DecompressionStream === 'undefined') {
    throw new Error('This browser cannot unpack the page: it lacks DecompressionStream, which Chromium has since version 80 and Firefox since version 113.');
  }
  const text = atob($('profile').textContent.trim());
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) {
    packed[i] = text.charCodeAt(i);
  }
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'));
  const buffer = await new Response(stream).arrayBuffer();
  const view = new DataView(buffer);
  const length = view.getUint32(0, true);
  const json = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const section = (name) => {
    const [offset, size] = json.sections[name];
    return new Numbers(new Uint8Array(buffer, 4 + length + offset, size));
  };
  return { json, section };
}

/** Numbers in LEB128: seven bits a byte, the least first. */
class Numbers {
  constructor(list) {
    this.list = list;
    this.at = 0;
  }

  next() {
    let value = 0;
    let scale = 1;
    for (;;) {
      const byte = this.list[this.at++];
      value += (byte & 127) * scale;
      if (!(byte & 128)) {
        return value;
      }
      scale *= 128;
    }
  }
}

/** The tree of functions: a caller has a smaller number than its callees; 0 is the root of all. */
function readTree({ json, section }) {
  const numbers = section('nodes');
  const size = json.nodes + 1;
  const tree = { size, parent: new Int32Array(size), func: new Int32Array(size), outermost: null };
  tree.func[0] = -1;
  tree.parent[0] = -1;
  for (let node = 1; node < size; node++) {
    tree.parent[node] = node - numbers.next();
    tree.func[node] = numbers.next();
  }
  tree.outermost = outermost(tree, tree.func, json.functions.symbol.length);
  return tree;
}

/**
 * For each node, 1 if none of its callers has the same key. Nodes are numbered in the order of a
 * walk in depth; keys are below `bound`.
 */
function outermost({ size, parent }, key, bound) {
  const open = new Int32Array(bound);
  const result = new Uint8Array(size);
  const path = [0];
  for (let node = 1; node < size; node++) {
    while (path[path.length - 1] !== parent[node]) {
      open[key[path.pop()]]--;
    }
    result[node] = open[key[node]]++ === 0 ? 1 : 0;
    path.push(node);
  }
  return result;
}

/** The samples: cells of one vCPU and one segment of time each, with entries of node, role and count. */
function readSamples({ json, section }) {
  const cells = json.time.buckets * Math.max(1, json.time.vcpus.length);
  const start = new Int32Array(cells + 1);
  const weight = new Float64Array(cells);
  const numbers = section('cells');
  const size = json.entries;
  let cell = -1;
  let entries = 0;
  for (let n = 0; n < json.cells; n++) {
    const next = cell + 1 + numbers.next();
    start.fill(entries, cell + 1, next + 1);
    cell = next;
    entries += numbers.next();
    weight[cell] = numbers.next() / json.time.weightScale;
  }
  start.fill(entries, cell + 1);
  const samples = { cells, start, weight, node: new Int32Array(size), role: new Int32Array(size), count: new Int32Array(size) };
  const [nodes, roles, counts] = ['entryNodes', 'entryRoles', 'entryCounts'].map(section);
  for (let c = 0; c < cells; c++) {
    let node = 0;
    for (let i = start[c]; i < start[c + 1]; i++) {
      node += nodes.next();
      samples.node[i] = node;
      samples.role[i] = roles.next();
      samples.count[i] = counts.next();
    }
  }
  return samples;
}

/** Whole stacks with their weights, s: sleeps of tasks, the samples of the base, or stacks from the host. */
function readLeaves({ json, section }, name) {
  const size = json.leaves[name];
  if (size === undefined) {
    return null;
  }
  const numbers = section(name);
  const leaves = { node: new Int32Array(size), role: new Int32Array(size), count: new Float64Array(size), weight: new Float64Array(size) };
  let node = 0;
  for (let i = 0; i < size; i++) {
    node += numbers.next();
    leaves.node[i] = node;
    leaves.role[i] = numbers.next();
    leaves.count[i] = numbers.next();
    leaves.weight[i] = numbers.next() / 1e9;
  }
  return leaves;
}

/** For each bucket of time, 1 if sampling was stopped on all vCPUs in its middle. */
function unsampledBuckets({ time, microstates }) {
  const result = new Uint8Array(time.buckets);
  if (microstates.length === 0) {
    return result;
  }
  const stopped = new Uint16Array(time.buckets);
  const bucket = (us) => Math.max(0, Math.min(time.buckets, Math.ceil((us * 1e3 - time.beginNs) / time.bucketNs - 0.5)));
  for (const { stops } of microstates) {
    for (const [from, to] of stops) {
      for (let i = bucket(from); i < bucket(to); i++) {
        stopped[i]++;
      }
    }
  }
  stopped.forEach((n, i) => { result[i] = Number(n >= microstates.length); });
  return result;
}

/** All data of the page. */
async function load() {
  const block = await unpack();
  const { json } = block;
  const profile = {
    ...json,
    tree: readTree(block),
    samples: readSamples(block),
    offCpu: readLeaves(block, 'offCpu'),
    hostLeaves: readLeaves(block, 'host'),
    baseLeaves: readLeaves(block, 'base'),
  };
  // Row of processes, mode, thread and call of each role.
  profile.roles = json.roles.map(([thread, mode, call]) => [json.threads.row[thread], mode, thread, call]);
  // Begin, length and smallest part of the axis of time, s. A profile without samples has an axis, too.
  profile.begin = json.time.beginNs / 1e9;
  profile.length = json.time.bucketNs * json.time.buckets / 1e9;
  profile.step = json.time.bucketNs / 1e9;
  profile.unsampled = unsampledBuckets(json);
  /** Whether the page was made of a part of the run's time. */
  profile.isPart = json.report.filter.from_ns !== null || json.report.filter.to_ns !== null;
  return profile;
}
