// A list of any length: only the rows that can be seen are in the page.

import { h } from './dom.js';
import { count } from './format.js';

const SPARE = 6;

export class Rows extends HTMLElement {
  /**
   * `columns`: [{label, width, narrow, align, wide, sort, cell(row) -> node or text}]; on a phone `narrow` is the
   * width, and a `wide` one is left out. `var(--seq)` is as wide as the last seq. `open(row)` is called for a row that is clicked or entered, `mark(row)` for
   * one on which Space is pressed, `need(index)` when rows up to there are looked at.
   */
  setup({ label, columns, rowHeight = 32, open, mark, need, sort, empty }) {
    Object.assign(this, { columns, rowHeight, open, mark, need, sort, entries: [], total: 0, active: -1, shown: new Map() });
    this.setAttribute('role', 'table');
    this.setAttribute('aria-label', label);
    this.head = h('div', { class: 'row head', role: 'row' }, columns.map((column) => this.headCell(column)));
    this.space = h('div', { class: 'space', role: 'presentation' });
    this.scroller = h('div', { class: 'scroller', tabindex: 0, role: 'rowgroup', 'aria-label': `${label}, rows` }, this.space);
    this.empty = h('div', { class: 'empty', hidden: true }, empty ?? '');
    this.replaceChildren(this.head, this.scroller, this.empty);
    this.style.setProperty('--columns', columns.map(({ width }) => width).join(' '));
    this.style.setProperty('--narrow', columns.filter(({ wide }) => !wide).map(({ width, narrow }) => narrow ?? width).join(' '));
    this.scroller.addEventListener('scroll', () => this.draw());
    this.scroller.addEventListener('keydown', (event) => this.key(event));
    this.space.addEventListener('click', (event) => this.pick(event.target.closest('[data-index]')));
    return this;
  }

  connectedCallback() {
    this.resizing = new ResizeObserver(() => {
      // The head has no bar to scroll with: it leaves the room that the rows leave for theirs.
      this.style.setProperty('--bar', `${this.scroller.offsetWidth - this.scroller.clientWidth}px`);
      this.draw();
    });
    this.resizing.observe(this.scroller);
  }

  disconnectedCallback() {
    this.resizing.disconnect();
  }

  headCell(column) {
    const attributes = { class: `${column.align ?? ''} ${column.wide ? 'wide' : ''}`, role: 'columnheader' };
    if (!column.sort) return h('div', attributes, column.label);
    return h('div', attributes, h('button', { type: 'button', class: 'sorter', onclick: () => this.sort(column.sort) }, column.label, h('span', { 'aria-hidden': 'true' })));
  }

  /** Say which column the rows are sorted by. */
  sorted(name, isDown) {
    this.columns.forEach((column, index) => {
      if (!column.sort) return;
      const cell = this.head.children[index];
      const direction = column.sort === name ? (isDown ? 'descending' : 'ascending') : 'none';
      cell.setAttribute('aria-sort', direction);
      cell.querySelector('span').textContent = { none: '', ascending: '↑', descending: '↓' }[direction];
    });
  }

  /** Show these rows; `total` is more if not all of them are here yet. */
  set(entries, total = entries.length) {
    this.entries = entries;
    this.total = Math.max(total, entries.length);
    this.empty.hidden = this.total > 0;
    this.setAttribute('aria-rowcount', this.total);
    const seq = count(entries.findLast(({ $seq }) => $seq)?.$seq ?? 0);
    this.style.setProperty('--seq', `${Math.max(32, 8 * seq.length)}px`);
    this.space.style.height = `${this.total * this.rowHeight}px`;
    this.draw(true);
  }

  /** The first and the last row that can be seen. */
  get visible() {
    const { scrollTop, clientHeight } = this.scroller;
    return [scrollTop, scrollTop + clientHeight].map((top) => Math.floor(top / this.rowHeight));
  }

  get isAtEnd() {
    return this.scroller.scrollTop + this.scroller.clientHeight >= this.scroller.scrollHeight - this.rowHeight;
  }

  toEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  /** So many rows have left at the top: what is looked at stays where it is. */
  left(number) {
    this.active = Math.max(this.active - number, -1);
    this.scroller.scrollTop -= number * this.rowHeight;
  }

  draw(isNew = false) {
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / this.rowHeight) - SPARE);
    const last = Math.min(this.total, Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / this.rowHeight) + SPARE);
    for (const [index, element] of this.shown) {
      if (index < first || index >= last) {
        element.remove();
        this.shown.delete(index);
      }
    }
    const added = document.createDocumentFragment();
    for (let index = first; index < last; index += 1) {
      if (this.shown.has(index)) {
        if (isNew) renew(this.shown.get(index), this.row(index));
        continue;
      }
      const element = this.row(index);
      this.shown.set(index, element);
      added.append(element);
    }
    this.space.append(added);
    if (last > this.entries.length || last >= this.entries.length - SPARE) this.need?.(last);
  }

  row(index) {
    const entry = this.entries[index];
    const element = h('div', { class: 'row', role: 'row', 'data-index': index, 'aria-rowindex': index + 1 });
    element.style.transform = `translateY(${index * this.rowHeight}px)`;
    element.style.height = `${this.rowHeight}px`;
    if (index === this.active) element.classList.add('active');
    if (entry === undefined) {
      element.classList.add('waiting');
      element.append(h('div', { role: 'cell' }, 'loading'));
    } else if (entry.banner) {
      element.classList.add('banner-row', entry.kind);
      element.append(h('div', { role: 'cell' }, entry.banner));
    } else {
      element.append(...this.columns.map((column) => h('div', { class: `${column.align ?? ''} ${column.wide ? 'wide' : ''} ${column.class ?? ''}`, role: 'cell' }, column.cell(entry))));
    }
    return element;
  }

  activate(index) {
    const before = this.shown.get(this.active);
    before?.classList.remove('active');
    this.active = index;
    const top = index * this.rowHeight;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + this.rowHeight > scrollTop + clientHeight) this.scroller.scrollTop = top + this.rowHeight - clientHeight;
    this.draw();
    this.shown.get(index)?.classList.add('active');
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / this.rowHeight) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.total, End: this.total };
    const entry = this.entries[this.active];
    if (event.key in moves && this.total > 0) {
      event.preventDefault();
      // Without an active row the first move is to one that can be seen.
      const from = this.active < 0 ? Math.ceil(this.scroller.scrollTop / this.rowHeight) - Math.sign(moves[event.key]) : this.active;
      this.activate(Math.min(Math.max(from + moves[event.key], 0), this.total - 1));
    } else if (event.key === 'Enter' && entry && !entry.banner) {
      this.open?.(entry, this.active);
    } else if (event.key === ' ' && this.mark && entry && event.target === this.scroller) {
      event.preventDefault();
      this.mark(entry);
      this.draw(true);
    }
  }

  pick(element) {
    if (!element) return;
    const index = Number(element.dataset.index);
    this.activate(index);
    if (this.entries[index] && !this.entries[index].banner) this.open?.(this.entries[index], index);
  }
}

/** Make a row what another one is; cells that stay the same stay in the page, with their focus and a click on them. */
function renew(element, next) {
  if (element.isEqualNode(next)) return;
  element.className = next.className;
  const cells = [...next.children];
  if (cells.length !== element.children.length) {
    element.replaceChildren(...cells);
    return;
  }
  [...element.children].forEach((cell, index) => {
    if (cell.isEqualNode(cells[index])) return;
    const hadFocus = cell.contains(document.activeElement);
    cell.replaceWith(cells[index]);
    if (hadFocus) cells[index].querySelector('input, button, a')?.focus();
  });
}

customElements.define('ev-rows', Rows);
