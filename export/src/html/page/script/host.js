// The host of an attached VM: places of the vCPUs' threads over time and of the whole run, and functions of the host.

/** Places of a vCPU's thread in the order in which a lane stacks them, with their names. */
const PLACES = [
  ['guest', 'Guest'],
  ['kvm', 'KVM, between two stays in the guest'],
  ['vmm', 'VMM'],
  ['waiting', 'Waiting for a CPU of the host'],
  ['halted', 'Halted'],
];

/** Stretches of the thread of one vCPU, as `segments` returns those of the vCPU: ticks divide the time of each by place. */
function hostSegments(row, list) {
  return list.map(({ begin, end }, i) => {
    const ticks = PLACES.map(([place]) => row.places[place][i]);
    const all = ticks.reduce((sum, n) => sum + n, 0);
    const state = Object.fromEntries(PLACES.map(([place], at) => [place, all > 0 ? (end - begin) * ticks[at] / all : 0]));
    return { begin, end, state, ticks: all };
  });
}

/** The description of a stretch, line by line. */
function describePlaces({ begin, end, state, ticks }) {
  const parts = PLACES.filter(([place]) => state[place] > 0).map(([place, name]) => `${name} ${percent(state[place] / (end - begin))}`);
  return [counted(ticks, 'tick'), ...parts];
}

function showHost(profile) {
  const { host } = profile;
  if (!host) {
    return;
  }
  $('host').hidden = false;
  document.querySelector('.bar a[href="#host"]').parentElement.hidden = false;
  const without = host.without_stack > 0 ? ` ${counted(host.without_stack, 'tick')} outside of the guest without a stack.` : '';
  const callers = host.vmm_stacks_of_one > host.vmm_stacks / 2 ? ` ${count(host.vmm_stacks_of_one)} of ${counted(host.vmm_stacks, 'stack')} have one function of the VMM: its code has no frame pointers, so callers and totals are missing.` : '';
  const leftOut = profile.hostFunctionsLeftOut > 0 ? ` ${counted(profile.hostFunctionsLeftOut, 'function')} with less time left out.` : '';
  $('host-note').textContent = `Of the whole run: shares of the vCPUs' time, ${duration(host.run_s)}, by ${counted(host.ticks, 'tick')}, with 95 % intervals, as vprof report --host. The lanes of the timeline show the places over time.`;
  $('host-functions-note').textContent = `Functions of the VMM, of KVM and of the host's kernel, without the time of sleeping vCPUs.${callers}${without}${leftOut}`;
  const mostOf = (rows, part) => Math.max(...rows.map((row) => part(row).share_high), 0);
  const part = (row) => row;
  const mostPlace = mostOf(host.places, part);
  const table = $('host-places');
  const names = Object.fromEntries(PLACES);
  table.replaceChildren(table.caption,
    el('thead', {}, el('tr', {}, ...[['Place', ''], ['Ticks', 'number'], ['Time', 'number'], ['Share', 'number'], ['95 % interval', 'number'], ['', '']].map(([name, className]) => el('th', { scope: 'col', className }, name)))),
    el('tbody', {}, ...host.places.map((row) => el('tr', { 'data-place': row.place },
      el('th', { scope: 'row' }, swatch(row.place), names[row.place]),
      el('td', { className: 'number', 'data-title': 'Ticks' }, count(row.samples)),
      el('td', { className: 'number', 'data-title': 'Time' }, duration(row.time_s)),
      el('td', { className: 'number', 'data-title': 'Share' }, percent(row.share)),
      el('td', { className: 'number', 'data-title': '95 % interval' }, intervalText(row.share_low, row.share_high)),
      el('td', { className: 'bar-cell' }, shareBar(row.share, row.share_low, row.share_high, mostPlace, row.place === 'guest' ? '' : 'other'))))));
  const own = (row) => row.self;
  const most = mostOf(host.functions, own);
  const code = (row) => (row.kind === 'user' ? 'VMM' : row.kind);
  const functions = new DataTable('host-functions', [
    { title: 'Function', class: 'name', value: (row) => row.symbol, cell: (row) => row.symbol },
    { title: 'Module', class: 'name', value: (row) => row.module ?? '', cell: (row) => row.module ?? '' },
    { title: 'Code', value: code, cell: code },
    { title: 'Ticks', number: true, value: (row) => row.self.samples, cell: (row) => count(row.self.samples), hint: 'Ticks in the function itself' },
    { title: 'Self', number: true, value: (row) => row.self.share, cell: (row) => percent(row.self.share) },
    { title: '95 % interval', number: true, value: (row) => row.self.share_low, cell: (row) => intervalText(row.self.share_low, row.self.share_high) },
    { title: 'Total', number: true, value: (row) => row.total.share, cell: (row) => percent(row.total.share), hint: 'In it and in its callees' },
    { title: '', class: 'bar-cell', cell: (row) => shareBar(row.self.share, row.self.share_low, row.self.share_high, most, row.kind === 'user' ? '' : 'kernel') },
  ], { sort: 4, thing: 'function', text: (row) => `${row.symbol} ${row.module ?? ''} ${code(row)}` });
  functions.set(host.functions);
}
