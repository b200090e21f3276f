// The table of processes.

class Processes {
  constructor(profile, view) {
    this.profile = profile;
    this.view = view;
    this.most = 1;
    const value = (key) => (row) => row[key];
    this.table = new DataTable('processes', [
      { title: 'Process', class: 'name', value: (row) => row.name, cell: (row) => this.nameOf(row) },
      { title: 'Pid', number: true, value: value('pid'), cell: (row) => (row.pid > 0 ? String(row.pid) : '') },
      { title: 'Samples', number: true, value: value('samples'), cell: (row) => count(row.samples) },
      { title: 'Time', number: true, value: value('time'), cell: (row) => duration(row.time) },
      { title: 'Share', number: true, value: value('share'), cell: (row) => percent(row.share) },
      { title: '95 % interval', number: true, value: value('low'), cell: (row) => intervalText(row.low, row.high) },
      { title: 'User', number: true, value: value('user'), cell: (row) => percent(row.user), hint: 'The part of the share in user code' },
      { title: 'Kernel', number: true, value: (row) => row.share - row.user, cell: (row) => percent(Math.max(0, row.share - row.user)), hint: 'The rest of the share' },
      { title: '', class: 'bar-cell', cell: (row) => shareBar(row.share, row.low, row.high, this.most, row.colour) },
    ], { sort: 4, thing: 'row', text: (row) => row.words, pick: (row) => row.at === view.process });
    view.onChange(() => this.update());
    this.update();
  }

  /** Shows the rows of a program alone. */
  find(program) {
    this.table.find(program);
    $('processes').scrollIntoView();
  }

  nameOf(row) {
    const { view } = this;
    const is = view.process === row.at;
    return link(row.name, is ? `${row.hint} — click for all processes` : `${row.hint} — click to show it alone`, () => view.only(is ? null : row.at));
  }

  update() {
    const { profile, view } = this;
    const sums = view.sums();
    const known = profile.processes.map((row, at) => ({ row, at })).filter(({ row, at }) => (view.whole ? row.samples > 0 : sums.whoCount[at] > 0));
    const rows = known.map(({ row, at }) => {
      const share = sums.whoTime[at] / (sums.time || 1);
      const part = { samples: sums.whoCount[at], time: sums.whoTime[at], share, ...wilson(share, sums.count), user: sums.whoUser[at] / (sums.time || 1) };
      const whole = { samples: row.samples, time: row.time_s, share: row.share, low: row.share_low, high: row.share_high, user: row.user_share };
      const name = processName(row);
      const hint = [row.command ?? name, row.exe, row.unit ?? row.cgroup, row.container].filter(Boolean).join(', ');
      return { at, name, hint, pid: row.pid, colour: processColour(row), words: `${name} ${row.pid} ${hint}`, ...(view.whole ? whole : part) };
    });
    this.most = Math.max(...rows.map((row) => row.high), 0);
    $('processes-note').textContent = intervalNote(view, profile) + (view.process === null ? '' : ` ${processName(profile.processes[view.process])} alone is shown in the flame graph and among the functions.`);
    this.table.set(rows);
  }
}

/** What the intervals of a table are. */
function intervalNote(view, profile) {
  return view.whole
    ? 'Shares are of all time in the guest that was not idle, with 95 % intervals from the sequence of samples (docs/statistics.md).'
    : `Shares of the picked time, with Wilson's 95 % intervals, as if samples were independent; vprof report --time derives them from the sequence of samples. ${counted(view.sums().count, 'sample')} of ${count(profile.report.busy_samples)}.`;
}
