// Elements of the page, and how their text is written. Names of the guest get into the page here and in canvases only,
// always as text.

/** The element with this id. */
const $ = (id) => document.getElementById(id);

/**
 * A new element. `properties` are properties of the element; `class`, `aria-*`, `data-*`, `role` and the like are set as
 * attributes. Children are nodes, or strings, which become text.
 */
function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in element) {
      element[key] = value;
    } else {
      element.setAttribute(key, value);
    }
  }
  element.append(...children);
  return element;
}

const SVG = 'http://www.w3.org/2000/svg';

/** A new element of SVG with these attributes. */
function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

/** A small square in the colour of this custom property. */
function swatch(colour) {
  const square = el('span', { className: 'swatch', 'aria-hidden': 'true' });
  square.style.background = `var(--${colour})`;
  return square;
}

/** A legend: names with their colours. */
function legend(target, entries) {
  target.replaceChildren(...entries.map(([name, colour]) => el('span', {}, swatch(colour), name)));
}

/** 1234567 as 1,234,567. */
const count = (n) => Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, ',');

/** A part in per cent, like 12.3 %. A part that is too small to show is <0.1 %. */
function percent(part) {
  if (!Number.isFinite(part)) {
    return '–';
  }
  return part > 0 && part < 0.0005 ? '<0.1 %' : `${(part * 100).toFixed(1)} %`;
}

/** A change of a share in percentage points, like +1.2 %. */
function change(part) {
  const shown = (part * 100).toFixed(1);
  return `${part < 0 || shown.startsWith('-') ? '−' : '+'}${shown.replace('-', '')} %`;
}

/** A time in s, to three digits, with its unit. */
function duration(s) {
  const size = Math.abs(s);
  for (const [unit, scale] of [['s', 1], ['ms', 1e3], ['µs', 1e6]]) {
    if (size * scale >= 0.9995 || unit === 'µs' && size > 0) {
      const value = s * scale;
      const digits = Math.abs(value) < 9.995 ? 2 : Math.abs(value) < 99.95 ? 1 : 0;
      return `${digits === 0 ? value.toFixed(0).replace(/\B(?=(\d{3})+$)/g, ',') : value.toFixed(digits)} ${unit}`;
    }
  }
  return '0 s';
}

/** A number of bytes with its unit. */
function bytes(n) {
  for (const [unit, scale] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]]) {
    if (n >= scale) {
      return `${(n / scale).toFixed(n / scale < 100 ? 1 : 0)} ${unit}`;
    }
  }
  return `${n} bytes`;
}

/** A count of something in words. */
const counted = (n, thing) => `${count(n)} ${thing}${n === 1 ? '' : thing.endsWith('s') ? 'es' : 's'}`;

/** A time of the run in s, with as many digits as distinguish steps of `step` s. */
function moment(s, step) {
  return s.toFixed(Math.min(6, Math.max(0, Math.ceil(-Math.log10(step || 1)))));
}

/** A part with its interval in words. */
const within = (part, low, high) => `${percent(part)}, 95 % interval ${percent(low)} to ${percent(high)}`;

/** True if all words of `wanted`, in lower case, are in `text`. */
function matches(text, wanted) {
  const lower = text.toLowerCase();
  return wanted.split(/\s+/).every((word) => lower.includes(word));
}
