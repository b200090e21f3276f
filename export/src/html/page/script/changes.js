// What changed against the base: the time of each program and of each function, in the base and in this profile.

/** `now` are the sums of the whole run. */
function showChanges(profile, now, find) {
  const { base, programs, functions } = profile;
  if (!base) {
    return;
  }
  $('changes').hidden = false;
  document.querySelector('.bar a[href="#changes"]').parentElement.hidden = false;
  const all = { time: now.time, count: now.count, base: base.time, baseCount: base.samples };
  $('changes-note').textContent = `${duration(base.time)} of CPU time in ${base.name}, ${duration(now.time)} in ${profile.name}: ${signed(now.time - base.time)}. Both are whole runs. These two runs are compared, not two programs: runs differ, too. Changes in grey are within the chance of sampling, as if samples were independent; \`vprof diff --repeat\` compares several runs.`;
  const rows = changedPrograms(profile, now).map((row, i) => ({ ...row, name: programs.names[i], module: '' }));
  changesTable('changed-programs', 'Program', 'program', rows, all, (row) => row.name);
  const { symbol, module, modules, kind } = functions;
  const own = changedFunctions(profile, now)
    .map((row, id) => ({ ...row, name: symbol[id], module: modules[module[id]] ?? '', kind: kind[id] }))
    .filter((row) => row.kind === 'u' || row.kind === 'k');
  changesTable('changed-functions', 'Function', 'function', own, all, (row) => link(row.name, 'Find it in the flame graph', () => find(row.name)));
}

const noChange = () => ({ time: 0, count: 0, base: 0, baseCount: 0 });

/** Time and samples of each program, in this profile and in the base. */
function changedPrograms({ programs, roles, baseLeaves }, now) {
  const rows = programs.names.map(noChange);
  programs.of.forEach((program, who) => {
    rows[program].time += now.whoTime[who];
    rows[program].count += now.whoCount[who];
  });
  baseLeaves.role.forEach((role, i) => {
    const row = rows[programs.of[roles[role][0]]];
    row.base += baseLeaves.weight[i];
    row.baseCount += baseLeaves.count[i];
  });
  return rows;
}

/** Time and samples of each function itself, in this profile and in the base. */
function changedFunctions({ functions, tree, baseLeaves }, now) {
  const rows = functions.symbol.map(noChange);
  for (let node = 1; node < tree.size; node++) {
    const row = rows[tree.func[node]];
    row.time += now.nodeTime[node];
    row.count += now.nodeCount[node];
  }
  baseLeaves.node.forEach((node, i) => {
    if (node > 0) {
      const row = rows[tree.func[node]];
      row.base += baseLeaves.weight[i];
      row.baseCount += baseLeaves.count[i];
    }
  });
  return rows;
}

/**
 * Whether the times of a row differ by more than two samplings of the same time would, with 95 % confidence (Agresti and
 * Caffo 2000: one sample more of each kind keeps small counts honest).
 */
function isBeyondChance(row, all) {
  const variance = (n, of, time) => {
    const part = (n + 1) / (of + 2);
    return time * time * part * Math.max(0, 1 - part) / (of + 2);
  };
  const both = variance(row.count, all.count, all.time) + variance(row.baseCount, all.baseCount, all.base);
  return Math.abs(row.time - row.base) > Z * Math.sqrt(both);
}

/** A time with its sign. Sums of the same times in other orders differ in their last digits. */
const signed = (s) => (Math.abs(s) < 5e-7 ? '0 s' : `${s < 0 ? '−' : '+'}${duration(Math.abs(s))}`);

/** Time as a multiple of the base's. */
function ratio({ time, base }) {
  if (base === 0 || time === 0) {
    return base === time ? '' : base === 0 ? 'new' : 'gone';
  }
  const times = time / base;
  return times >= 100 ? '>99 x' : `${times.toFixed(2)} x`;
}

function changesTable(id, title, thing, rows, all, name) {
  const known = rows.filter((row) => row.time > 0 || row.base > 0);
  const difference = (row) => row.time - row.base;
  const size = (row) => Math.abs(difference(row));
  const most = known.reduce((most, row) => Math.max(most, size(row)), 0);
  const columns = [
    { title, class: 'name', value: (row) => row.name, cell: name },
    { title: 'Module', class: 'name', value: (row) => row.module, cell: (row) => row.module },
    { title: 'Base', number: true, value: (row) => row.base, cell: (row) => duration(row.base) },
    { title: 'This run', number: true, value: (row) => row.time, cell: (row) => duration(row.time) },
    { title: 'Change', number: true, value: size, cell: (row) => el('span', { className: isBeyondChance(row, all) ? '' : 'quiet' }, signed(difference(row))), hint: 'Sorted by its size' },
    { title: 'Ratio', number: true, value: (row) => (row.base > 0 ? row.time / row.base : Infinity), cell: ratio },
    { title: '', class: 'bar-cell', cell: (row) => changeBar(difference(row), most) },
  ].filter((column) => thing === 'function' || column.title !== 'Module');
  const sort = columns.findIndex((column) => column.title === 'Change');
  new DataTable(id, columns, { sort, thing, text: (row) => `${row.name} ${row.module}`, first: 10 }).set(known);
}

/** A change as a bar from the middle: to the right for more, to the left for less. */
function changeBar(difference, most) {
  const bar = el('i', { className: difference > 0 ? 'more' : 'less' });
  const width = Math.abs(difference) / (most || 1) * 50;
  bar.style.width = `${width}%`;
  bar.style.left = `${difference > 0 ? 50 : 50 - width}%`;
  return el('div', { className: 'share change', 'aria-hidden': 'true' }, bar);
}
