// The guest's own books of CPU time, and what was so.

const MOST_BOOKS = 24;

function showBooks(profile) {
  const { rusage } = profile;
  const rows = rusage.processes.slice(0, MOST_BOOKS);
  const { booksRead: read, booksOutside: outside } = profile;
  const { since_s: since } = rusage.cpus[0] ?? {};
  const from = typeof since === 'number' ? `. CPUs, and processes that were there before, count since the books were first read, at ${moment(since, 0.01)} s` : '';
  $('books-note').textContent = rows.length === 0
    ? "None of the guest's books were read."
    : `CPU time that the guest's kernel tells of each process (getrusage, /proc/PID/stat) beside the true time with its 95 % interval${read > rows.length ? `; the ${rows.length} with most of ${count(read)}` : ''}${from}. ${rusage.unsampled_s > 0 ? 'Sampling was stopped for a part of the run, which is in what is told and not in the true time: the two do not compare.' : outside === 0 ? 'None is further from it than chance explains.' : `${outside === 1 ? '1 process was' : `${count(outside)} processes were`} told further from it than chance explains.`}`;
  if (rows.length > 0) {
    $('books-chart').replaceChildren(booksLegend(), booksChart(rows));
  }
  if (rusage.cpus.length > 0) {
    showCpus(rusage.cpus);
  }
}

function booksLegend() {
  const mark = (...shapes) => svg('svg', { width: 22, height: 14, viewBox: '0 0 22 14', 'aria-hidden': 'true' }, ...shapes);
  const entry = (shape, text) => el('span', {}, shape, text);
  const target = el('div', { className: 'legend books-legend' },
    entry(mark(svg('path', { d: 'M1 7h20', stroke: 'currentColor', 'stroke-width': 2 }), svg('circle', { cx: 11, cy: 7, r: 3.5, fill: 'currentColor' })), 'true time and its 95 % interval'));
  for (const [className, text] of [['told', 'told by the guest'], ['told outside', 'told, outside of the interval']]) {
    const shape = svg('svg', { width: 14, height: 14, viewBox: '-7 -7 14 14', 'aria-hidden': 'true' }, diamond(className));
    target.append(entry(shape, text));
  }
  return target;
}

const diamond = (className) => svg('path', { d: 'M0-6 6 0 0 6-6 0Z', class: className });

function booksChart(rows) {
  const told = (row) => (row.reported_user_ns + row.reported_system_ns) / 1e9;
  const most = Math.max(...rows.map((row) => Math.max(told(row), row.measured_high_ns / 1e9)), 1e-9) * 1.02;
  const at = (s) => `${s / most * 100}%`;
  const step = niceStep(most / 6);
  const ticks = Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
  const grid = () => ticks.map((s) => svg('line', { class: 'grid', x1: at(s), x2: at(s), y1: 0, y2: '100%' }));
  const cells = rows.flatMap((row) => {
    const [low, truth, high] = [row.measured_low_ns, row.measured_cpu_ns, row.measured_high_ns].map((ns) => ns / 1e9);
    const name = `${row.comm}#${row.instance}`;
    const text = `told ${duration(told(row))}, was ${duration(truth)} (${duration(low)} to ${duration(high)})`;
    const mark = svg('svg', { x: at(told(row)), y: '50%', overflow: 'visible' }, diamond(row.outside ? 'told outside' : 'told'));
    const chart = svg('svg', { role: 'img', 'aria-label': `${name}: ${text}` }, ...grid(),
      svg('line', { class: 'whisker', x1: at(low), x2: at(high), y1: '50%', y2: '50%' }),
      svg('circle', { class: 'truth', cx: at(truth), cy: '50%', r: 4 }), mark);
    const difference = el('span', { className: row.outside ? 'bad' : 'quiet' }, `${row.difference_ns < 0 ? '−' : '+'}${duration(Math.abs(row.difference_ns) / 1e9)}`);
    return [el('span', { className: 'who', title: name }, name), chart, el('span', {}, `${duration(told(row))} / ${duration(truth)} `, difference)];
  });
  const labels = ticks.map((s, i) => svg('text', { x: at(s), y: 14, 'text-anchor': i === 0 ? 'start' : s > most * 0.95 ? 'end' : 'middle' }, `${moment(s, step)} s`));
  const axis = svg('svg', { class: 'axis', 'aria-hidden': 'true' }, ...labels);
  return el('div', { className: 'books' }, ...cells, el('span'), axis, el('span', { className: 'quiet' }, 'told / true, difference'));
}

/** /proc/stat against the truth, for each CPU. */
function showCpus(cpus) {
  const kinds = [['user_ns', 'user'], ['system_ns', 'system'], ['irq_ns', 'hard interrupts'], ['softirq_ns', 'soft interrupts'], ['idle_ns', 'idle'], ['steal_ns', 'steal']];
  const heads = ['CPU', 'Time', 'Told', 'True', '95 % interval', 'Difference'].map((name, i) => el('th', { scope: 'col', className: i > 1 ? 'number' : '' }, name));
  const rows = cpus.flatMap((cpu) => kinds.map(([key, name], i) => {
    const [told, truth, low, high] = [cpu.reported, cpu.truly, cpu.low, cpu.high].map((times) => times[key] / 1e9);
    const far = told < low - 0.01 || told > high + 0.01;
    return el('tr', {}, el('td', {}, i === 0 ? `CPU ${cpu.cpu}` : ''), el('td', {}, name),
      ...[duration(told), duration(truth), low === high ? 'exact' : `${duration(low)} to ${duration(high)}`].map((text) => el('td', { className: 'number' }, text)),
      el('td', { className: `number ${far ? 'bad' : 'quiet'}` }, `${told < truth ? '−' : '+'}${duration(Math.abs(told - truth))}`));
  }));
  const table = $('books-cpus');
  table.replaceChildren(table.caption, el('thead', {}, el('tr', {}, ...heads)), el('tbody', {}, ...rows));
}
