// Machine code of the functions with most samples: what `vprof annotate` shows, of the whole run.

function showCode(profile) {
  const { code } = profile;
  if (code.length === 0) {
    return;
  }
  $('code').hidden = false;
  document.querySelector('.bar a[href="#code"]').parentElement.hidden = false;
  $('code-function').replaceChildren(...code.map(({ symbol, module, share }, i) => el('option', { value: String(i) }, `${symbol}${module === null ? '' : ` [${module}]`} ${percent(share)}`)));
  const show = () => showListing(profile, code[Number($('code-function').value)]);
  $('code-function').addEventListener('change', show);
  show();
}

function showListing(profile, { size, share, samples, totalSamples, notes, lines }) {
  const emulated = profile.codeEmulated ? ' Emulated host: a tick waits for the end of a block of code, so samples are exact to a block, not to an instruction.' : '';
  $('code-note').textContent = `Of the whole run: ${counted(samples, 'sample')} in the function itself, ${percent(share)} of all time that was not idle. Self is the part of them at an instruction; Below is the part of the ${counted(totalSamples, 'sample')} with the function on their stack in what the instruction called, or in what interrupted it.${emulated} ${notes.join(' ')}`;
  const most = lines.reduce((most, [, , , own]) => Math.max(most, own), 1);
  const part = (n, all) => (n > 0 ? percent(n / (all || 1)) : '');
  const note = (text) => el('tr', { className: 'quiet' }, el('td', { colSpan: 4 }, text));
  const rows = [];
  let next = 0;
  let from = null;
  for (const [number, address, text, own, below, source] of lines) {
    if (number > next) {
      rows.push(note(`… ${counted(number - next, 'instruction')}`));
    }
    next = number + 1;
    if (source !== null && source !== from) {
      rows.push(note(`; ${source}`));
      from = source;
    }
    const row = el('tr', {}, ...[part(own, samples), part(below, totalSamples)].map((cell) => el('td', { className: 'number' }, cell)), el('td', { className: 'number code' }, address), el('td', { className: 'code' }, text));
    row.style.background = own > 0 ? `color-mix(in srgb, var(--heat) ${(8 + own / most * 40).toFixed(0)}%, var(--page))` : '';
    rows.push(row);
  }
  if (size > next) {
    rows.push(note(`… ${counted(size - next, 'instruction')}`));
  }
  const table = $('code-table');
  const head = ['Self', 'Below', 'Address', 'Instruction'].map((name, i) => el('th', { scope: 'col', className: i < 3 ? 'number' : '' }, name));
  table.replaceChildren(table.caption, el('thead', {}, el('tr', {}, ...head)), el('tbody', {}, ...rows));
}
