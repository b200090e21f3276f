// Console output and events in the order of time, those of the picked time.

const MOST_LINES = 1000;

class Log {
  constructor(profile, view, timeline) {
    this.profile = profile;
    this.view = view;
    this.timeline = timeline;
    const events = profile.report.events.map((event) => ({ s: event.time_s, kind: event.kind, text: event.text, isEvent: true }));
    const lines = profile.console.lines.map(([s, text]) => ({ s, kind: 'console', text, isEvent: false }));
    this.rows = [...events, ...lines].sort((a, b) => a.s - b.s);
    for (const id of ['log-filter', 'log-events', 'log-console']) {
      $(id).addEventListener('input', () => this.update());
    }
    view.onChange(() => this.update());
    this.update();
  }

  update() {
    const { view, profile } = this;
    const [from, to] = view.seconds();
    const wanted = $('log-filter').value.trim().toLowerCase();
    const is = (row) => (view.whole && !profile.isPart || row.s >= from && row.s < to)
      && $(row.isEvent ? 'log-events' : 'log-console').checked
      && (wanted === '' || matches(`${row.kind} ${row.text}`, wanted));
    const kept = this.rows.filter(is);
    const shown = kept.slice(0, MOST_LINES);
    const { eventsLeftOut: events, console: { leftOut: lines } } = profile;
    const left = lines + events > 0 ? `; ${counted(lines, 'line')} of the console and ${counted(events, 'event')} are not in this page` : '';
    $('log-count').textContent = `${counted(kept.length, 'line')}${kept.length > shown.length ? `, the first ${count(shown.length)} are shown` : ''}${left}`;
    $('log-rows').replaceChildren(...shown.map((row) => this.row(row)));
  }

  row(row) {
    const line = el('div', { className: row.isEvent ? 'event' : '' }, el('time', {}, `${row.s.toFixed(6)} s`), el('span', { title: row.kind }, row.kind), el('p', {}, row.text));
    line.addEventListener('pointerenter', () => this.timeline.point(row.s));
    line.addEventListener('pointerleave', () => this.timeline.point(null));
    return line;
  }
}
