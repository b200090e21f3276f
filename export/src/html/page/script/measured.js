// How the profile was measured: what to know before comparing it with anything.

function showMeasured(profile) {
  const { report } = profile;
  const facts = [
    ['Profile', profile.name],
    ['vprof', report.version],
    ['Host', [report.host, report.meta.host_reason].filter(Boolean).join(': ')],
    ['Guest', [report.meta.image, report.kernel && `Linux ${report.kernel}`, counted(report.vcpus.length, 'vCPU'), report.meta.memory_bytes && bytes(Number(report.meta.memory_bytes))].filter(Boolean).join(', ')],
    ['Started', report.started_unix_s > 0 ? new Date(report.started_unix_s * 1000).toISOString() : 'not known'],
    ['Length', `${report.duration_s.toFixed(3)} s${report.complete ? '' : ', not complete'}`],
    ['Sampling clock', `${report.clock || 'not known'}, ${count(report.rate_hz)} Hz asked for, ${count(report.measured_rate_hz)} Hz a vCPU measured, seed ${profile.seed}`],
    ['Intervals', report.intervals_valid ? '95 %, for the true time of this very run; docs/statistics.md derives them' : 'not valid under this clock'],
    ['Samples', samplesText(report)],
    ['Lateness of ticks', `median ${duration(report.lateness.median_ns / 1e9)}, 99 % within ${duration(report.lateness.p99_ns / 1e9)}, at most ${duration(report.lateness.max_ns / 1e9)}; ${count(report.lateness.over_1ms)} more than 1 ms`],
    ['Cost of sampling', `${duration(report.overhead.sampler_s)}, ${percent(report.overhead.share)} of the vCPUs' time`],
    ['Longer runs', report.needed_for_half ? `${report.needed_for_half.toFixed(1)} times this length would halve the interval of the largest share` : ''],
    ['Kernel stacks', walksText(report.stacks.kernel)],
    ['User stacks', walksText(report.stacks.user)],
    ['Names of user code', report.user_code.samples > 0 ? `${percent(1 - report.user_code.unnamed_share)} of ${counted(report.user_code.samples, 'sample')} in code with a name` : 'no samples in user code'],
    ['Exact mode', exactText(profile)],
  ];
  const list = (entries) => el('dl', { className: 'facts' }, ...entries.filter(([, text]) => text).flatMap(([name, text]) => [el('dt', {}, name), el('dd', {}, text)]));
  const parts = [list(facts)];
  const files = report.user_code.files.filter((file) => file.unnamed > 0).slice(0, 20);
  if (files.length > 0) {
    parts.push(el('h3', {}, 'Files that lack names'), list(files.map((file) => [file.path, `${count(file.unnamed)} of ${counted(file.samples, 'sample')} unnamed${file.build_id ? `; a debug file with build-id ${file.build_id} would name them` : ''}`])));
  }
  const meta = Object.entries(report.meta);
  if (meta.length > 0) {
    parts.push(el('details', {}, el('summary', {}, 'All keys of the run'), list(meta)));
  }
  $('measured-body').replaceChildren(...parts);
  $('made').textContent = `Made by vprof ${profile.version} from ${profile.name}. This file needs no network.`;
}

function samplesText({ samples, ticks, busy_samples: busy, lost }) {
  const other = [[ticks.halted, 'found the vCPU halted'], [ticks.vmm, 'out of KVM_RUN'], [ticks.waiting, 'most likely without a CPU of the host']].filter(([n]) => n > 0).map(([n, text]) => `${count(n)} ${text}`);
  return `${count(samples)}: ${[`${count(ticks.guest)} in the guest, ${count(busy)} of them not idle`, ...other].join('; ')}. ${count(lost)} lost.`;
}

function walksText({ walks, complete_share: share, broken }) {
  if (walks === 0) {
    return 'none walked';
  }
  const reasons = broken.slice(0, 5).map((reason) => `${reason.reason} ${percent(reason.share)}`).join(', ');
  return `${percent(share)} of ${count(walks)} walks reached the end${reasons ? `; the others: ${reasons}` : ''}`;
}

function exactText({ exact, exactMissing }) {
  if (!exact) {
    return exactMissing ? `none: ${exactMissing}` : 'none';
  }
  const sum = (key) => exact.vcpus.reduce((all, vcpu) => all + (vcpu[key] ?? 0), 0);
  return `${count(sum('switches'))} switches seen, ${count(sum('guest_switches'))} by the kernel's own count; ${count(sum('lost'))} events lost; its events cost ${duration(sum('cost_s'))}${exact.end ? `; it ended: ${exact.end}` : ''}`;
}
