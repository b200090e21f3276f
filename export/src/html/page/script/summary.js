// The summary: the whole run in a few figures, and their limits.

function showSummary(profile, { showProgram, find }) {
  const { report } = profile;
  $('subject').textContent = [profile.name, report.meta.image, report.meta.command].filter(Boolean).join(' · ');
  document.title = `${profile.name} · vprof`;
  $('limits').replaceChildren(...limits(profile).map((text) => el('li', {}, text)));
  $('tiles').replaceChildren(...tiles(profile).map(([value, name]) => el('div', { className: 'tile' }, el('b', {}, value), el('span', {}, name))));
  const named = report.programs.map((row) => ({ ...row, name: programName(row), kind: processColour(row), act: () => showProgram(row.comm) })).sort((a, b) => b.share - a.share);
  shares($('top-processes'), named, 'Program', 'Find its processes');
  const { kind } = profile.functions;
  const functions = profile.estimates
    .map(([id, samples, share, low, high]) => ({ name: inModule(profile.functions, id), act: () => find(profile.functions.symbol[id]), kind: kind[id] === 'u' ? '' : 'kernel', samples, share, share_low: low, share_high: high }))
    .sort((a, b) => b.share - a.share);
  shares($('top-functions'), functions, 'Function', 'Find it in the flame graph');
}

/** Limits of the figures, one sentence each. */
function limits({ report, base, isSlowed, isMostlySerial }) {
  const list = [];
  const chosen = Object.entries(report.filter).filter(([, value]) => value !== null && value !== false && value.length !== 0);
  if (chosen.length > 0) {
    list.push(`Only a part of the run: ${chosen.map(([name, value]) => `${name.replace(/_ns$/, '').replace('vcpu', 'vCPU')} ${name.endsWith('_ns') ? `${value / 1e9} s` : value}`).join(', ')}.`);
  }
  if (report.samples === 0) {
    list.push('This profile has no samples.');
  } else if (report.busy_samples < 100) {
    list.push(`Only ${counted(report.busy_samples, 'sample')} of a guest that was not idle: intervals are wide.`);
  }
  if (!report.complete) {
    list.push('The run was cut short, or was in progress when this page was made: it shows only the data until then.');
  }
  if (report.host === 'portable') {
    list.push('Made in the portable host: an emulated processor spends its time differently. Times are not those of the real machine.');
  }
  if (isSlowed) {
    list.push(`Sampling took ${percent(report.overhead.share)} of the vCPUs' time, which slowed the guest. Use a lower rate (-F), or a less busy host.`);
  }
  if (isMostlySerial) {
    list.push(`The guest spent ${percent(report.serial.share)} of its CPU time on writing to a serial port, which takes it an exit for each byte.`);
  }
  if (!report.intervals_valid && report.samples > 0) {
    list.push('Sampled with a fixed clock, which a program can be in step with: the intervals are not valid.');
  }
  if (report.lost > 0) {
    list.push(`${counted(report.lost, 'sample')} lost: the recording could not keep up.`);
  }
  if (base) {
    list.push(`Compared with ${base.name}, the base: ${counted(base.samples, 'sample')}, ${duration(base.time)} of CPU time.`);
  }
  return list.concat(report.missing.map((text) => `Not read: ${text}`));
}

function tiles({ report, processes, isPart }) {
  const busy = processes.reduce((sum, row) => sum + row.time_s, 0);
  const user = processes.reduce((sum, row) => sum + row.user_share, 0);
  const interrupts = processes.filter((row) => row.kind === 'interrupt').reduce((sum, row) => sum + row.share, 0);
  const vcpus = report.vcpus;
  // The time in which it was sampled and had a CPU of the host.
  const idle = vcpus.reduce((sum, vcpu) => sum + vcpu.times.idle.time_s, 0);
  const started = report.started_unix_s > 0 ? new Date(report.started_unix_s * 1000).toISOString().replace('T', ' ').slice(0, 16) : '';
  const busyKnown = report.busy_samples > 0;
  return [
    [duration(report.duration_s), started ? `length of the run, ${started} UTC` : 'length of the run'],
    [duration(busy), `of CPU time on ${counted(vcpus.length, 'vCPU')}${busy + idle > 0 && !isPart ? `, idle for ${percent(idle / (busy + idle))} of the sampled time` : ''}`],
    [busyKnown ? percent(user) : '–', 'of that in user code'],
    [busyKnown ? percent(Math.max(0, 1 - user - interrupts)) : '–', 'in the kernel'],
    [busyKnown ? percent(interrupts) : '–', 'in interrupts'],
    [count(report.samples), `samples, ${count(report.measured_rate_hz)} per second and vCPU`],
    [report.kernel ?? 'not known', "the guest's kernel"],
    [report.host === 'kvm' ? 'KVM' : report.host, 'host'],
  ];
}

/** The largest shares as bars with their intervals. */
function shares(target, rows, heading, hint) {
  const shown = rows.slice(0, 8);
  if (shown.length === 0) {
    target.replaceChildren(el('p', { className: 'note' }, 'None: the guest was idle in all samples.'));
    return;
  }
  const most = Math.max(...shown.map((row) => row.share_high));
  const head = el('tr', {}, el('th', { scope: 'col' }, heading), el('th', { scope: 'col', className: 'number' }, 'Share'), el('th', { scope: 'col', className: 'number' }, '95 %'), el('th', { scope: 'col' }, el('span', { className: 'hidden' }, 'as a bar')));
  const body = shown.map((row) => el('tr', {},
    el('td', { className: 'name', title: row.name }, link(row.name, hint, row.act)),
    el('td', { className: 'number' }, percent(row.share)),
    el('td', { className: 'number quiet' }, intervalText(row.share_low, row.share_high)),
    el('td', { className: 'bar-cell' }, shareBar(row.share, row.share_low, row.share_high, most, row.kind))));
  target.replaceChildren(el('div', { className: 'scroll' }, el('table', { className: 'data' }, el('thead', {}, head), el('tbody', {}, ...body))));
}

/** A share as a bar up to `most`, with a whisker for its interval if it has one. The figures are next to it. */
function shareBar(share, low, high, most, kind = '') {
  const at = (value) => `${Math.min(100, value / (most || 1) * 100)}%`;
  const bar = el('i', { className: kind });
  bar.style.width = at(share);
  if (low === high) {
    return el('div', { className: 'share', 'aria-hidden': 'true' }, bar);
  }
  const whisker = el('u');
  whisker.style.left = at(low);
  whisker.style.width = `${Math.min(100, (high - low) / (most || 1) * 100)}%`;
  const ends = [low, high].map((value) => {
    const end = el('s');
    end.style.left = `min(${at(value)}, calc(100% - 1px))`;
    return end;
  });
  return el('div', { className: 'share', 'aria-hidden': 'true' }, bar, whisker, ...ends);
}

/** 10.1–14.5 %. */
const intervalText = (low, high) => `${(low * 100).toFixed(1)}–${(high * 100).toFixed(1)} %`;

/** Name of a process, with the number of the instance and its VM, which distinguish it from others of its name. */
function processName(row) {
  const name = `${row.vm ? `${row.vm}/` : ''}${row.comm}#${row.instance}`;
  return { process: name, kernel_thread: `[${name}]` }[row.kind] ?? row.comm;
}

/** A program, with the number of its processes if it had several. */
const programName = (row) => (row.instances > 1 ? `${commName(row)}, ${count(row.instances)} processes` : commName(row));

/** The name of a program: a process may have that of a kernel thread. */
const commName = (row) => (row.kind === 'kernel_thread' ? `[${row.comm}]` : row.comm);

/** A function with its module, which distinguishes it from others of its name. */
function inModule({ symbol, module, modules }, id) {
  const name = modules[module[id]];
  return name === undefined || symbol[id] === `[${name}]` ? symbol[id] : `${symbol[id]} [${name}]`;
}

/** The class of a bar by the kind of its process. */
const processColour = (row) => ({ process: '', kernel_thread: 'kernel', interrupt: 'interrupt' })[row.kind] ?? 'other';
