// Histograms of times: from an exit to the next entry, and from a wake-up of a task until it runs.

/** Sizes of the chart, px, and the part of its width that the bars take. */
const HISTOGRAM = { height: 190, bottom: 22, top: 16, left: 0.03, width: 0.94 };

function showLatency(profile) {
  const { exits, exitTimes } = profile.stat;
  const known = exitTimes.map((times, i) => ({ times, exit: exits[i] })).filter(({ times }) => times.length > 0);
  if (known.length === 0) {
    return;
  }
  $('latency').hidden = false;
  const name = ({ exit }) => [exit.reason, exitPlace(exit)].filter(Boolean).join(', ');
  $('latency-exit').replaceChildren(el('option', { value: '' }, 'All'), ...known.map((one, i) => el('option', { value: String(i) }, name(one))));
  const show = () => {
    const chosen = $('latency-exit').value;
    drawLatency(chosen === '' ? known : [known[Number(chosen)]]);
  };
  $('latency-exit').addEventListener('change', show);
  show();
}

/** Sums of histograms, whose buckets are the same: beginning, end, number. */
function addTimes(known) {
  const sums = new Map();
  for (const { times } of known) {
    for (const [low, end, n] of times) {
      sums.set(low, [low, end, (sums.get(low)?.[2] ?? 0) + n]);
    }
  }
  return [...sums.values()].sort((a, b) => a[0] - b[0]);
}

function drawLatency(known) {
  const times = addTimes(known);
  const all = times.reduce((sum, [, , n]) => sum + n, 0);
  const longest = Math.max(...known.map(({ exit }) => exit.max_ns));
  drawHistogram('latency', times, 'exit');
  $('latency-note').textContent = `${counted(all, 'exit')}, each timed from the exit to the next entry; the longest took ${duration(longest / 1e9)}. The axis of time is logarithmic: buckets are at most an eighth of their beginning wide.`;
}

function showWakeups({ wakeup_latency: latency }) {
  if (!latency) {
    return;
  }
  $('wakeups').hidden = false;
  drawHistogram('wakeups', latency.buckets.map(({ from_s: from, to_s: to, count: n }) => [from * 1e9, to * 1e9, n]), 'wake-up');
  $('wakeups-note').textContent = `${counted(latency.count, 'wake-up')}, each timed until the task ran: half within ${duration(latency.p50_s)}, 99 % within ${duration(latency.p99_s)}; the longest took ${duration(latency.max_s)}. The axis of time is logarithmic: buckets are at most an eighth of their beginning wide.`;
}

/** Draws the buckets, which are beginning and end in ns, and number, as a chart and as a table below it. */
function drawHistogram(id, times, thing) {
  const all = times.reduce((sum, [, , n]) => sum + n, 0);
  const { height, bottom, top, left, width } = HISTOGRAM;
  // The first bucket begins at 0, which has no logarithm.
  const at = (ns) => Math.log10(Math.max(ns, 50));
  const [begin, end] = [Math.floor(at(times[0][0])), Math.ceil(at(times[times.length - 1][1]))];
  const part = (ns) => left + (at(ns) - begin) / Math.max(1, end - begin) * width;
  const x = (ns) => `${part(ns) * 100}%`;
  const most = times.reduce((most, [, , n]) => Math.max(most, n), 1);
  const floor = height - bottom;
  const y = (n) => top + (1 - n / most) * (floor - top);
  const powers = Array.from({ length: end - begin + 1 }, (_, i) => 10 ** (begin + i));
  const bars = times.map(([low, high, n]) => svg('rect', { x: x(low), y: y(n), width: `${Math.max(0.1, (part(high) - part(low)) * 100 - 0.05)}%`, height: Math.max(1, floor - y(n)) },
    svg('title', {}, `${counted(n, thing)} of ${duration(low / 1e9)} to ${duration(high / 1e9)}`)));
  const axis = powers.flatMap((ns) => [svg('line', { x1: x(ns), x2: x(ns), y1: top, y2: floor }), svg('text', { x: x(ns), y: height - 6, 'text-anchor': 'middle' }, duration(ns / 1e9))]);
  const peak = svg('text', { x: 0, y: 11 }, `${counted(most, thing)} in the highest bar`);
  $(`${id}-chart`).replaceChildren(svg('svg', { role: 'img', 'aria-label': `Histogram of ${counted(all, thing)}; the table below has its numbers` }, ...axis, peak, ...bars));
  plainTable(`${id}-table`, ['From', 'To', `${thing[0].toUpperCase()}${thing.slice(1)}s`], times.map(([low, high, n]) => [duration(low / 1e9), duration(high / 1e9), count(n)]));
}
