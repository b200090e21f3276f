// Light and dark, and colours for canvases.

const theme = {
  known: new Map(),
  knownParts: new Map(),
  listeners: [],

  /** The colour of a custom property as the theme has it now. */
  colour(name) {
    let colour = this.known.get(name);
    if (colour === undefined) {
      const probe = el('span');
      probe.style.color = `var(--${name})`;
      document.body.append(probe);
      colour = getComputedStyle(probe).color;
      probe.remove();
      this.known.set(name, colour);
    }
    return colour;
  },

  /** Red, green and blue of a custom property, 0 to 255. */
  parts(name) {
    let parts = this.knownParts.get(name);
    if (parts === undefined) {
      parts = this.colour(name).match(/[\d.]+/g).slice(0, 3).map(Number);
      this.knownParts.set(name, parts);
    }
    return parts;
  },

  changed() {
    this.known.clear();
    this.knownParts.clear();
    this.listeners.forEach((listener) => listener());
  },

  /** Makes the buttons work. The choice is kept while the page is open: a file has no storage. */
  start() {
    const buttons = document.querySelectorAll('[data-theme-choice]');
    for (const button of buttons) {
      button.addEventListener('click', () => {
        const choice = button.dataset.themeChoice;
        document.documentElement.style.colorScheme = choice === 'auto' ? 'light dark' : choice;
        buttons.forEach((other) => other.setAttribute('aria-pressed', String(other === button)));
        this.changed();
      });
    }
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.changed());
  },
};

/** A canvas as sharp as the screen, `height` CSS pixels high and as wide as it is shown. Returns its context and width. */
function prepare(canvas, height) {
  const width = canvas.parentElement.clientWidth;
  const scale = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width };
}

/** `text`, cut so that it is at most `room` pixels wide; empty if not even a few letters fit. */
function fitted(context, text, room) {
  if (room < 18) {
    return '';
  }
  // No letter of the fonts that are used is narrower than 2 pixels.
  const part = text.length > room / 2 ? text.slice(0, Math.ceil(room / 2)) : text;
  if (context.measureText(part).width <= room && part === text) {
    return text;
  }
  let low = 0;
  let high = part.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${part.slice(0, middle)}…`).width <= room) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low < 2 ? '' : `${part.slice(0, low)}…`;
}
