// Exits of the vCPUs by reason, interrupts and KVM's counters.

function showExits(profile) {
  const { exits, exitSites, interrupts, counters } = profile.stat;
  $('exits-note').textContent = exits.length === 0
    ? 'No exits were recorded.'
    : 'Returns of KVM_RUN over the whole run, each timed from the exit to the next entry. "interrupted" are ticks of the sampling clock, and calls to stop.';
  const most = Math.max(...exits.map((exit) => exit.total_ns), 1);
  const ns = (key) => ({ number: true, value: (row) => row[key], cell: (row) => duration(row[key] / 1e9) });
  const table = new DataTable('exits', [
    { title: 'Reason', value: (row) => row.reason, cell: (row) => row.reason },
    { title: 'Device or address', class: 'name', value: exitPlace, cell: exitPlace },
    { title: 'Exits', number: true, value: (row) => row.count, cell: (row) => count(row.count) },
    { title: 'Total', ...ns('total_ns') },
    { title: 'Mean', ...ns('mean_ns') },
    { title: 'Median', ...ns('p50_ns') },
    { title: '99 %', ...ns('p99_ns') },
    { title: 'Longest', ...ns('max_ns') },
    { title: '', class: 'bar-cell', cell: (row) => shareBar(row.total_ns, row.total_ns, row.total_ns, most, 'other') },
  ], { sort: 3, thing: 'row' });
  table.set(exits);
  showExitSites(exitSites);
  plainTable('interrupts-table', ['Device', 'Vector', 'Interrupts'], interrupts.map((row) => [row.device, row.vector === null ? 'I/O APIC' : `0x${row.vector.toString(16)}`, count(row.count)]));
  plainTable('counters-table', ['Counter of KVM', 'vCPU', 'Value'], counters.map((row) => [row.name, String(row.vcpu), row.name.endsWith('_ns') ? duration(row.value / 1e9) : count(row.value)]));
}

/** Exits by process and function of the guest; nothing where the host's kernel has not noted them. */
function showExitSites(sites) {
  $('sites').hidden = sites.length === 0;
  const most = Math.max(...sites.map((site) => site.total_ns), 1);
  const error = (of, by) => (of === 0 || by === 0 ? '' : ` ± ${percent(by / of)}`);
  const table = new DataTable('sites', [
    { title: 'Process', class: 'name', value: (row) => row.process, cell: (row) => row.process },
    { title: 'Function', class: 'name', value: siteFunction, cell: siteFunction },
    { title: 'Reason', value: (row) => row.reason, cell: (row) => row.reason },
    { title: 'Device or address', class: 'name', value: exitPlace, cell: exitPlace },
    { title: 'Exits', number: true, value: (row) => row.count, cell: (row) => count(row.count) + error(row.count, row.count_error) },
    { title: 'Total', number: true, value: (row) => row.total_ns, cell: (row) => duration(row.total_ns / 1e9) + error(row.total_ns, row.total_error_ns) },
    { title: 'Mean', number: true, value: (row) => row.mean_ns, cell: (row) => duration(row.mean_ns / 1e9) },
    { title: '', class: 'bar-cell', cell: (row) => shareBar(row.total_ns, row.total_ns, row.total_ns, most, 'other') },
  ], { sort: 5, thing: 'row' });
  table.set(sites);
}

const siteFunction = (row) => `${row.function ?? ''}${row.module === null || row.function === `[${row.module}]` ? '' : ` [${row.module}]`}`;

const exitPlace = (row) => row.device ?? (row.address === null ? '' : `0x${row.address.toString(16)}`);

/** A table that is neither sorted nor filtered; its last column holds numbers. */
function plainTable(id, names, rows) {
  const className = (i) => (i === names.length - 1 ? 'number' : '');
  const table = $(id);
  table.replaceChildren(table.caption,
    el('thead', {}, el('tr', {}, ...names.map((name, i) => el('th', { scope: 'col', className: className(i) }, name)))),
    el('tbody', {}, ...rows.map((cells) => el('tr', {}, ...cells.map((text, i) => el('td', { className: className(i) }, text))))));
}
