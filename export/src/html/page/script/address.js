// The chosen part in the page's address, behind its #, so that a finding can be sent or kept.

class PageAddress {
  constructor(profile, view, flame) {
    Object.assign(this, { profile, view, flame });
    /** The address that this page wrote itself. */
    this.written = null;
    document.querySelectorAll('a[href^="#"]').forEach((anchor) => anchor.addEventListener('click', (event) => {
      // The place in the page is no part of the address: it would replace the choice.
      event.preventDefault();
      const target = document.querySelector(anchor.getAttribute('href'));
      target.scrollIntoView();
      // As after a link: the next Tab goes on from there.
      target.tabIndex = -1;
      target.focus({ preventScroll: true });
    }));
    addEventListener('hashchange', () => {
      if (location.hash !== this.written) {
        this.read();
      }
    });
    this.read();
    view.onChange(() => this.write());
    flame.onChange = () => this.write();
  }

  /** Shows what the address says; what it names and the page does not have is left out. */
  read() {
    const text = location.hash.slice(1);
    if (!text.includes('=')) {
      document.getElementById(text)?.scrollIntoView();
      return;
    }
    const wanted = new URLSearchParams(text);
    const { profile, view, flame } = this;
    const process = profile.processes.findIndex((row) => processName(row) === wanted.get('process'));
    view.only(process < 0 ? null : process);
    const [from, to] = [Number(wanted.get('from')), Number(wanted.get('to'))];
    if (Number.isFinite(from) && Number.isFinite(to) && to > from) {
      view.pickSeconds(from, to);
    } else {
      view.pickAll();
    }
    flame.restore({
      shows: wanted.get('off') === '1' ? 'offCpu' : wanted.get('host') === '1' ? 'host' : 'onCpu',
      invert: wanted.get('invert') === '1',
      byProcess: wanted.get('merged') !== '1',
      search: wanted.get('search') ?? '',
      zoom: wanted.getAll('frame').slice(0, MOST_ROWS),
    });
  }

  write() {
    const { profile, view, flame } = this;
    const parts = new URLSearchParams();
    if (!view.whole) {
      const [from, to] = view.seconds();
      parts.set('from', moment(from, profile.step));
      parts.set('to', moment(to, profile.step));
    }
    if (view.process !== null) {
      parts.set('process', processName(profile.processes[view.process]));
    }
    const { invert } = flame.shape;
    for (const [name, on] of [['off', flame.offCpu], ['host', flame.shows === 'host'], ['invert', invert], ['merged', !$('by-process').checked]]) {
      if (on) {
        parts.set(name, '1');
      }
    }
    if (flame.wanted !== '') {
      parts.set('search', flame.wanted);
    }
    flame.zoom.forEach((key) => parts.append('frame', key));
    const text = parts.toString();
    this.written = text === '' ? '' : `#${text}`;
    if (location.hash !== this.written) {
      // An address without a choice has no # either.
      history.replaceState(null, '', this.written || location.pathname + location.search);
    }
  }
}
