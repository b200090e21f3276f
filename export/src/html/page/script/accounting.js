// CPU time by the guest's own accounting, and measured CPU time.

const MOST_PROCESSES = 24;

function showAccounting(profile) {
  const { rusage } = profile;
  const rows = rusage.processes.slice(0, MOST_PROCESSES);
  const { accountingRead: read, accountingOutside: outside } = profile;
  const { since_s: since } = rusage.cpus[0] ?? {};
  const from = typeof since === 'number' ? `. CPUs, and processes that existed before vprof, count from the first reading of the accounting, at ${moment(since, 0.01)} s` : '';
  $('accounting-note').textContent = rows.length === 0
    ? "The guest's CPU accounting was not read."
    : `CPU time that the guest's kernel reports for each process (getrusage, /proc/PID/stat), next to the measured time with its 95 % interval${read > rows.length ? `; the ${rows.length} with most of ${count(read)}` : ''}${from}. ${rusage.unsampled_s > 0 ? 'Sampling was stopped for a part of the run: reported times include it, measured times do not. The two do not compare.' : outside === 0 ? 'No reported time differs by more than chance explains.' : `The reported time of ${outside === 1 ? '1 process' : `${count(outside)} processes`} differs by more than chance explains.`}`;
  if (rows.length > 0) {
    $('accounting-chart').replaceChildren(accountingLegend(), accountingChart(rows, rusage.unsampled_s === 0));
  }
  if (rusage.cpus.length > 0) {
    showCpus(rusage.cpus, rusage.unsampled_s === 0);
  }
}

function accountingLegend() {
  const mark = (...shapes) => svg('svg', { width: 22, height: 14, viewBox: '0 0 22 14', 'aria-hidden': 'true' }, ...shapes);
  const entry = (shape, text) => el('span', {}, shape, text);
  const target = el('div', { className: 'legend accounting-legend' },
    entry(mark(svg('path', { d: 'M1 7h20', stroke: 'currentColor', 'stroke-width': 2 }), svg('circle', { cx: 11, cy: 7, r: 3.5, fill: 'currentColor' })), 'measured time and its 95 % interval'));
  for (const [className, text] of [['reported', 'reported by the guest'], ['reported outside', 'reported, outside of the interval']]) {
    const shape = svg('svg', { width: 14, height: 14, viewBox: '-7 -7 14 14', 'aria-hidden': 'true' }, diamond(className));
    target.append(entry(shape, text));
  }
  return target;
}

const diamond = (className) => svg('path', { d: 'M0-6 6 0 0 6-6 0Z', class: className });

/** The reported and the measured time of each process. They compare if it was sampled all the time. */
function accountingChart(rows, compare) {
  const reported = (row) => (row.reported_user_ns + row.reported_system_ns) / 1e9;
  const most = Math.max(...rows.map((row) => Math.max(reported(row), row.measured_high_ns / 1e9)), 1e-9) * 1.02;
  const at = (s) => `${s / most * 100}%`;
  const step = niceStep(most / 6);
  const ticks = Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
  const grid = () => ticks.map((s) => svg('line', { class: 'grid', x1: at(s), x2: at(s), y1: 0, y2: '100%' }));
  const cells = rows.flatMap((row) => {
    const [low, measured, high] = [row.measured_low_ns, row.measured_cpu_ns, row.measured_high_ns].map((ns) => ns / 1e9);
    const name = `${row.comm}#${row.instance}`;
    const text = `reported ${duration(reported(row))}, measured ${duration(measured)} (${duration(low)} to ${duration(high)})`;
    const mark = svg('svg', { x: at(reported(row)), y: '50%', overflow: 'visible' }, diamond(row.outside ? 'reported outside' : 'reported'));
    const chart = svg('svg', { role: 'img', 'aria-label': `${name}: ${text}` }, ...grid(),
      svg('line', { class: 'whisker', x1: at(low), x2: at(high), y1: '50%', y2: '50%' }),
      svg('circle', { class: 'measured', cx: at(measured), cy: '50%', r: 4 }), mark);
    const signed = `${row.difference_ns < 0 ? '−' : '+'}${duration(Math.abs(row.difference_ns) / 1e9)}`;
    const difference = el('span', { className: row.outside ? 'bad' : 'quiet' }, compare ? signed : '–');
    return [el('span', { className: 'who', title: name }, name), chart, el('span', {}, `${duration(reported(row))} / ${duration(measured)} `, difference)];
  });
  const labels = ticks.map((s, i) => svg('text', { x: at(s), y: 14, 'text-anchor': i === 0 ? 'start' : s > most * 0.95 ? 'end' : 'middle' }, `${moment(s, step)} s`));
  const axis = svg('svg', { class: 'axis', 'aria-hidden': 'true' }, ...labels);
  return el('div', { className: 'accounting' }, ...cells, el('span'), axis, el('span', { className: 'quiet' }, 'reported / measured, difference'));
}

/** Reported times of /proc/stat next to measured ones, for each CPU. */
function showCpus(cpus, compare) {
  const kinds = [['user_ns', 'user'], ['system_ns', 'system'], ['irq_ns', 'hard interrupts'], ['softirq_ns', 'soft interrupts'], ['idle_ns', 'idle'], ['steal_ns', 'steal']];
  const heads = ['CPU', 'Time', 'Reported', 'Measured', '95 % interval', 'Difference'].map((name, i) => el('th', { scope: 'col', className: i > 1 ? 'number' : '' }, name));
  const rows = cpus.flatMap((cpu) => kinds.map(([key, name], i) => {
    const [reported, measured, low, high] = [cpu.reported, cpu.measured, cpu.low, cpu.high].map((times) => times[key] / 1e9);
    const far = compare && (reported < low - 0.01 || reported > high + 0.01);
    return el('tr', {}, el('td', {}, i === 0 ? `CPU ${cpu.cpu}` : ''), el('td', {}, name),
      ...[duration(reported), duration(measured), low === high ? 'exact' : `${duration(low)} to ${duration(high)}`].map((text) => el('td', { className: 'number' }, text)),
      el('td', { className: `number ${far ? 'bad' : 'quiet'}` }, compare ? `${reported < measured ? '−' : '+'}${duration(Math.abs(reported - measured))}` : '–'));
  }));
  const table = $('accounting-cpus');
  table.replaceChildren(table.caption, el('thead', {}, el('tr', {}, ...heads)), el('tbody', {}, ...rows));
}
