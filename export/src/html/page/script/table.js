// A table whose rows are sorted by a click on a heading and filtered by words.

/** Rows that are in the page at first. The button below adds twenty times as many. */
const PAGE = 25;

/**
 * Columns have `title`, `cell(row)` (text or a node), `value(row)` to sort by, and may be `number`s. The parts of the page
 * are `ID-table`, and where there are any `ID-filter`, `ID-count` and `ID-more`. `first` rows are shown at first.
 */
class DataTable {
  constructor(id, columns, { sort, text, thing, pick, first = PAGE }) {
    Object.assign(this, { id, text, thing, pick });
    this.rows = [];
    this.first = first;
    this.table = $(`${id}-table`);
    this.filter = $(`${id}-filter`);
    this.more = $(`${id}-more`);
    this.filter?.addEventListener('input', () => { this.shown = first; this.draw(); });
    this.more?.addEventListener('click', () => { this.shown += 20 * PAGE; this.draw(); });
    this.setColumns(columns, sort);
  }

  /** Other columns, sorted by that with the number `sort`. */
  setColumns(columns, sort) {
    this.columns = columns;
    this.sortBy = sort;
    this.descending = true;
    this.shown = this.first;
    this.heads = columns.map((column, i) => this.head(column, i));
    this.body = el('tbody');
    this.table.replaceChildren(this.table.caption, el('thead', {}, el('tr', {}, ...this.heads)), this.body);
  }

  head(column, i) {
    const title = column.value ? el('button', { type: 'button' }, column.title) : column.title;
    const head = el('th', { scope: 'col', className: column.number ? 'number' : '' }, title);
    if (column.hint) {
      head.title = column.hint;
    }
    if (column.value) {
      title.addEventListener('click', () => {
        this.descending = this.sortBy === i ? !this.descending : Boolean(column.number);
        this.sortBy = i;
        this.draw();
      });
    }
    return head;
  }

  /** Filters the rows by these words. */
  find(words) {
    this.filter.value = words;
    this.shown = this.first;
    this.draw();
  }

  /** Other rows. */
  set(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    const wanted = (this.filter?.value ?? '').trim().toLowerCase();
    const kept = wanted === '' ? this.rows.slice() : this.rows.filter((row) => matches(this.text(row), wanted));
    const { value } = this.columns[this.sortBy];
    const sign = this.descending ? -1 : 1;
    const keys = new Map(kept.map((row) => [row, value(row)]));
    kept.sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      return sign * (typeof x === 'string' ? x.localeCompare(y) : x - y);
    });
    this.heads.forEach((head, i) => {
      if (i === this.sortBy) {
        head.setAttribute('aria-sort', this.descending ? 'descending' : 'ascending');
      } else {
        head.removeAttribute('aria-sort');
      }
    });
    const visible = kept.slice(0, this.shown);
    this.body.replaceChildren(...visible.map((row) => this.row(row)));
    const number = $(`${this.id}-count`);
    if (number) {
      number.textContent = kept.length === this.rows.length ? counted(kept.length, this.thing) : `${count(kept.length)} of ${counted(this.rows.length, this.thing)}`;
    }
    if (this.more) {
      this.more.hidden = visible.length === kept.length;
      this.more.textContent = `Show more: ${count(visible.length)} of ${count(kept.length)} are shown`;
    }
  }

  row(row) {
    const cells = this.columns.map((column) => {
      const cell = column.cell(row);
      const td = el('td', { className: [column.number ? 'number' : '', column.class ?? ''].join(' ').trim(), 'data-title': column.title }, cell);
      if (column.class === 'name') {
        td.title = typeof cell === 'string' ? cell : cell.textContent;
      }
      return td;
    });
    return el('tr', { className: this.pick?.(row) ? 'chosen-row' : '' }, ...cells);
  }
}

/** A name that does something when it is clicked. */
function link(text, hint, action) {
  const button = el('button', { type: 'button', title: hint }, text);
  button.addEventListener('click', action);
  return button;
}
