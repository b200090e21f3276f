// Time by programs, threads, control groups, modules, lines, instructions, system calls or interrupts, in a merged
// profile also by virtual machines and hosts: what `vprof report --by` shows, and the same of the picked time where the
// samples in the page have it.

/** Kinds with their names, in the order of the list; `code`: a sample counts for its callers, too. */
const KINDS = [
  ['process', 'programs', 'program'],
  ['instance', 'processes', 'process'],
  ['thread', 'threads', 'thread'],
  ['cgroup', 'control groups', 'control group'],
  ['function', 'functions', 'function', true],
  ['module', 'kernel, modules and files', 'module', true],
  ['line', 'source lines', 'line', true],
  ['instruction', 'instructions', 'instruction', true],
  ['syscall', 'system calls', 'system call'],
  ['irq', 'interrupts', 'interrupt'],
  ['vm', 'virtual machines', 'virtual machine'],
  ['host', 'hosts', 'host'],
];

/** Kinds that only the page of a merged profile has. */
const MERGED_KINDS = ['vm', 'host'];

const INTERRUPT_MODES = [2, 3, 4];
const KERNEL_MODE = 1;

class ByKind {
  constructor(profile, view) {
    this.profile = profile;
    this.view = view;
    $('by-kind').replaceChildren(...KINDS.filter(([kind]) => !MERGED_KINDS.includes(kind) || profile.by[kind]).map(([kind, names]) => el('option', { value: kind }, names)));
    $('by-kind').value = 'syscall';
    $('by-kind').addEventListener('change', () => this.choose());
    this.table = new DataTable('by', this.columns(), { sort: 4, text: (row) => `${row.name} ${row.kind} ${row.place}` });
    view.onChange(() => this.update());
    this.choose();
  }

  /** Shows the kind of the list. */
  choose() {
    this.table.thing = KINDS.find(([kind]) => kind === $('by-kind').value)[2];
    this.table.setColumns(this.columns(), 4);
    this.table.filter.value = '';
    this.update();
  }

  columns() {
    const [, , thing, isCode] = KINDS.find(([kind]) => kind === $('by-kind').value);
    const value = (key) => (row) => row[key];
    return [
      { title: thing[0].toUpperCase() + thing.slice(1), class: 'name', value: value('name'), cell: value('name') },
      { title: 'Kind', value: value('kind'), cell: value('kind') },
      { title: 'Of', class: 'name', value: value('place'), cell: value('place') },
      { title: 'Samples', number: true, value: value('samples'), cell: (row) => count(row.samples) },
      { title: isCode ? 'Self' : 'Share', number: true, value: value('share'), cell: (row) => percent(row.share) },
      { title: '95 % interval', number: true, value: value('low'), cell: (row) => intervalText(row.low, row.high) },
      ...(isCode ? [{ title: 'Total', number: true, value: value('totalShare'), cell: (row) => percent(row.totalShare), hint: 'With what it calls' }] : []),
      { title: '', class: 'bar-cell', cell: (row) => shareBar(row.share, row.low, row.high, this.most, BAR_COLOURS[row.kind] ?? '') },
    ];
  }

  update() {
    const { profile, view } = this;
    const kind = $('by-kind').value;
    const isPart = !view.whole || view.process !== null;
    const ofPart = isPart ? rowsOfPart(profile, view, kind) : null;
    const rows = ofPart ?? rowsOfRun(profile, kind);
    this.most = rows.reduce((most, row) => Math.max(most, row.high), 0);
    const [, names] = KINDS.find(([name]) => name === kind);
    const notes = [intervalNote({ whole: ofPart === null, sums: () => view.sums() }, profile)];
    if (isPart && ofPart === null) {
      notes.unshift(`All of the run: the page does not have ${names} of a part. vprof report --by ${kind} has them, with --time and --process.`);
    } else if (view.process !== null) {
      notes.push(`Only ${processName(profile.processes[view.process])}.`);
    }
    const leftOut = kind === 'function' ? profile.functionsLeftOut : profile.by[kind]?.leftOut ?? 0;
    if (ofPart === null && leftOut > 0) {
      notes.push(`${count(leftOut)} rows with fewer samples are left out.`);
    }
    $('by-note').textContent = notes.join(' ');
    this.table.set(rows);
  }
}

/** Classes of bars by the kind of a row. */
const BAR_COLOURS = { kernel: 'kernel', kernel_thread: 'kernel', interrupt: 'interrupt', hard: 'interrupt', soft: 'interrupt', nmi: 'interrupt', boot: 'other', unknown: 'other' };

/** The rows of the whole run, with the report's intervals. */
function rowsOfRun(profile, kind) {
  const { functions: { symbol, module, modules, kind: code } } = profile;
  if (kind === 'function') {
    return profile.estimates.map(([id, samples, share, low, high, , totalShare]) => ({ name: symbol[id], kind: code[id] === 'u' ? 'user' : 'kernel', place: modules[module[id]] ?? '', samples, share, low, high, totalShare }));
  }
  if (kind === 'instance') {
    return profile.processes.filter((row) => row.samples > 0).map((row) => ({ name: processName(row), kind: row.kind, place: row.command ?? '', samples: row.samples, share: row.share, low: row.share_low, high: row.share_high, totalShare: row.share }));
  }
  return profile.by[kind].rows.map(([name, of, place, samples, share, low, high, , totalShare]) => ({ name, kind: of ?? '', place, samples, share, low, high, totalShare }));
}

/** The rows of the picked time and process; null for a kind that the page's samples do not have. */
function rowsOfPart(profile, view, kind) {
  const isCode = kind === 'module' || kind === 'function';
  const key = keysOfRoles(profile, kind);
  if (!key && !isCode) {
    return null;
  }
  const sums = view.sums();
  const groups = isCode ? groupsOfCode(profile, sums, kind) : groupsOfRoles(profile, view, key);
  const share = (time) => time / (sums.time || 1);
  return [...groups.values()].map((row) => ({ ...row, share: share(row.time), totalShare: share(row.total ?? row.time), ...wilson(share(row.time), sums.count) }));
}

/** For each role the name, kind and place of its row, or null if it has none; undefined for kinds of code. */
function keysOfRoles({ roles, threads, calls, processes }, kind) {
  const ofRole = {
    process: ([row]) => [commName(processes[row]), processes[row].kind, ''],
    instance: ([row]) => [processName(processes[row]), processes[row].kind, processes[row].command ?? ''],
    thread: ([row, , thread]) => (threads.tid[thread] === null ? [processes[row].comm, processes[row].kind, ''] : [threads.name[thread], processes[row].kind, `${processName(processes[row])}, tid ${threads.tid[thread]}`]),
    cgroup: ([row]) => {
      const { kind: of, cgroup, unit, container, comm } = processes[row];
      return of === 'process' || of === 'kernel_thread' ? [cgroup ?? '[not read]', '', unit ?? container ?? ''] : [comm, of, ''];
    },
    syscall: ([, mode, , call]) => (mode === USER ? ['[user]', 'user', ''] : mode !== KERNEL_MODE ? null : call === 0 ? ['[no system call]', 'kernel', ''] : [calls[call - 1][1], 'kernel', '']),
    irq: ([, mode, , call]) => (INTERRUPT_MODES.includes(mode) && call > 0 ? [calls[call - 1][1], calls[call - 1][0], ''] : null),
  }[kind];
  return ofRole && roles.map(ofRole);
}

/** Sums of the picked time by the keys of roles. */
function groupsOfRoles({ samples, roles, time: { vcpus } }, view, keys) {
  const groups = new Map();
  const of = keys.map((key) => {
    if (key === null) {
      return null;
    }
    const [name, kind, place] = key;
    const text = key.join('\0');
    if (!groups.has(text)) {
      groups.set(text, { name, kind, place, samples: 0, time: 0 });
    }
    return groups.get(text);
  });
  const width = Math.max(1, vcpus.length);
  for (let cell = view.from * width; cell < view.to * width; cell++) {
    for (let i = samples.start[cell]; i < samples.start[cell + 1]; i++) {
      const role = samples.role[i];
      if (of[role] !== null && (view.process === null || roles[role][0] === view.process)) {
        of[role].samples += samples.count[i];
        of[role].time += samples.count[i] * samples.weight[cell];
      }
    }
  }
  groups.forEach((row, text) => { if (row.samples === 0) { groups.delete(text); } });
  return groups;
}

/** Sums of the picked time by function or module: itself, and with what it calls. */
function groupsOfCode({ tree, functions: { symbol, module, modules, kind } }, sums, by) {
  const groups = new Map();
  const rows = [];
  // Functions without a row are reasons why frames are missing.
  const ofFunc = symbol.map((name, id) => {
    if (kind[id] !== 'u' && kind[id] !== 'k') {
      return 0;
    }
    const file = modules[module[id]] ?? (kind[id] === 'k' ? 'kernel' : '[unknown]');
    const row = { name: by === 'module' ? file : name, kind: kind[id] === 'u' ? 'user' : 'kernel', place: by === 'module' ? '' : modules[module[id]] ?? '', samples: 0, time: 0, total: 0 };
    const text = [row.name, row.kind, row.place].join('\0');
    if (!groups.has(text)) {
      rows.push(row);
      groups.set(text, rows.length);
    }
    return groups.get(text);
  });
  const key = Int32Array.from(tree.func, (func) => (func < 0 ? 0 : ofFunc[func]));
  const first = outermost(tree, key, rows.length + 1);
  const total = addUp(tree, sums.nodeTime);
  for (let node = 1; node < tree.size; node++) {
    if (key[node] > 0) {
      const row = rows[key[node] - 1];
      row.samples += sums.nodeCount[node];
      row.time += sums.nodeTime[node];
      row.total += first[node] === 1 ? total[node] : 0;
    }
  }
  return new Map(rows.filter((row) => row.total > 0).map((row, i) => [i, row]));
}
