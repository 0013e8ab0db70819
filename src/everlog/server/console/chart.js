// A line chart on a canvas: time to the right, one or more series, a cursor that follows the pointer or the arrow keys.

import { clock } from './format.js';
import { h } from './dom.js';

const LEFT = 52;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 20;

function niceStep(max, lines) {
  const raw = max / lines;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= raw);
}

export class Chart extends HTMLElement {
  /** `series`: [{name, label, color}] of fields of the samples; `format` gives words for a value. */
  setup({ title, series, format, max = 0 }) {
    this.options = { title, series, format, max };
    this.rows = [];
    this.span = 300_000;
    this.cursor = null;
    this.canvas = h('canvas', { role: 'img', tabindex: 0 });
    this.values = h('div', { class: 'chart-values' });
    this.append(h('header', {}, h('h2', {}, title), this.values), this.canvas);
    this.canvas.addEventListener('pointermove', (event) => this.point(event.offsetX));
    this.canvas.addEventListener('pointerleave', () => this.point(null));
    this.canvas.addEventListener('blur', () => this.point(null));
    this.canvas.addEventListener('keydown', (event) => this.step(event));
    return this;
  }

  connectedCallback() {
    this.resizing = new ResizeObserver(() => this.draw());
    this.resizing.observe(this);
  }

  disconnectedCallback() {
    this.resizing.disconnect();
  }

  /** Show rows ([time, ...values]) whose fields are named; the last `span` milliseconds of them. */
  update(fields, rows, span, now) {
    this.columns = this.options.series.map(({ name }) => fields.indexOf(name));
    this.rows = rows;
    this.span = span;
    this.now = now;
    this.draw();
  }

  point(x) {
    this.cursor = x;
    this.draw();
  }

  step(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move || this.rows.length === 0) return;
    event.preventDefault();
    const from = this.cursor === null ? this.rows.length - 1 : this.nearest(this.cursor);
    const row = this.rows[Math.min(Math.max(from + move, 0), this.rows.length - 1)];
    this.point(this.x(row[0]));
  }

  x(time) {
    return LEFT + (1 - (this.now - time) / this.span) * (this.width - LEFT - RIGHT);
  }

  nearest(x) {
    let best = 0;
    this.rows.forEach((row, index) => {
      if (Math.abs(this.x(row[0]) - x) < Math.abs(this.x(this.rows[best][0]) - x)) best = index;
    });
    return best;
  }

  draw() {
    if (!this.isConnected || !this.options || !this.columns) return;
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    if (this.width === 0) return;
    this.canvas.width = this.width * ratio;
    this.canvas.height = this.height * ratio;
    const pen = this.canvas.getContext('2d');
    pen.scale(ratio, ratio);
    const style = getComputedStyle(this);
    const colors = this.options.series.map(({ color }) => style.getPropertyValue(`--${color}`));
    const seen = this.rows.filter((row) => row[0] >= this.now - this.span);
    const top = Math.max(this.options.max, ...seen.flatMap((row) => this.columns.map((column) => row[column])), 1e-9);
    const step = niceStep(top, 4);
    const ceiling = Math.max(step * Math.ceil(top / step), step);
    const y = (value) => this.height - BOTTOM - (value / ceiling) * (this.height - TOP - BOTTOM);
    this.axes(pen, style, step, ceiling, y);
    this.columns.forEach((column, index) => this.line(pen, seen, column, y, colors[index], index === 0 && this.columns.length === 1));
    this.mark(pen, style, seen, y, colors);
  }

  axes(pen, style, step, ceiling, y) {
    pen.font = `11px ${style.getPropertyValue('--sans')}`;
    pen.textBaseline = 'middle';
    pen.textAlign = 'right';
    pen.lineWidth = 1;
    for (let value = 0; value <= ceiling * 1.001; value += step) {
      pen.strokeStyle = style.getPropertyValue('--line');
      pen.beginPath();
      pen.moveTo(LEFT, Math.round(y(value)) + 0.5);
      pen.lineTo(this.width - RIGHT, Math.round(y(value)) + 0.5);
      pen.stroke();
      pen.fillStyle = style.getPropertyValue('--faint');
      pen.fillText(this.options.format(value), LEFT - 6, y(value));
    }
    pen.textAlign = 'center';
    const ticks = this.width < 420 ? 2 : 4;
    for (let tick = 0; tick <= ticks; tick += 1) {
      const time = this.now - this.span * (1 - tick / ticks);
      pen.textAlign = tick === 0 ? 'left' : tick === ticks ? 'right' : 'center';
      pen.fillText(clock(time).slice(0, 5 + (this.span < 600_000 ? 3 : 0)), this.x(time), this.height - BOTTOM / 2 + 3);
    }
  }

  line(pen, rows, column, y, color, filled) {
    // A pause in the samples is a gap: the server was not there.
    const gap = this.span > 600_000 ? 25_000 : 3500;
    const runs = [];
    for (const row of rows) {
      const last = runs.at(-1);
      if (last && row[0] - last.at(-1)[0] < gap) last.push(row);
      else runs.push([row]);
    }
    pen.lineWidth = 1.75;
    pen.lineJoin = 'round';
    pen.strokeStyle = color;
    for (const run of runs) {
      pen.beginPath();
      run.forEach((row, index) => (index ? pen.lineTo(this.x(row[0]), y(row[column])) : pen.moveTo(this.x(row[0]), y(row[column]))));
      pen.stroke();
      if (!filled) continue;
      pen.lineTo(this.x(run.at(-1)[0]), y(0));
      pen.lineTo(this.x(run[0][0]), y(0));
      pen.globalAlpha = 0.1;
      pen.fillStyle = color;
      pen.fill();
      pen.globalAlpha = 1;
    }
  }

  mark(pen, style, rows, y, colors) {
    const index = this.cursor === null || this.rows.length === 0 ? null : this.nearest(this.cursor);
    const row = index === null ? rows.at(-1) : this.rows[index];
    if (index !== null) {
      pen.strokeStyle = style.getPropertyValue('--faint');
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(this.x(row[0]), TOP);
      pen.lineTo(this.x(row[0]), this.height - BOTTOM);
      pen.stroke();
      this.columns.forEach((column, number) => {
        pen.fillStyle = colors[number];
        pen.beginPath();
        pen.arc(this.x(row[0]), y(row[column]), 3, 0, 7);
        pen.fill();
      });
    }
    this.tell(row, index !== null);
  }

  tell(row, isPast) {
    const { series, format, title } = this.options;
    const shown = series.map(({ label, color }, number) => {
      const value = row ? format(row[this.columns[number]]) : 'no samples yet';
      return { label, color, value };
    });
    this.values.replaceChildren(
      ...(isPast ? [h('span', { class: 'faint' }, clock(row[0]))] : []),
      ...shown.map(({ label, color, value }) => h('span', { class: `series ${color}` }, series.length > 1 && h('span', { class: 'faint' }, `${label} `), value)),
    );
    this.canvas.setAttribute('aria-label', `${title}: ${shown.map(({ label, value }) => `${label} ${value}`).join(', ')}`);
  }
}

customElements.define('ev-chart', Chart);

/** A line without axes, for a trend in a table. */
export function sparkline(canvas, values, color) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth || 96;
  const height = canvas.clientHeight || 22;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext('2d');
  pen.scale(ratio, ratio);
  pen.strokeStyle = color;
  pen.lineWidth = 1.5;
  pen.lineJoin = 'round';
  const top = Math.max(...values, 1);
  pen.beginPath();
  values.forEach((value, index) => {
    const x = values.length > 1 ? 1 + (index / (values.length - 1)) * (width - 2) : width / 2;
    const y = height - 2 - (value / top) * (height - 4);
    if (index) pen.lineTo(x, y);
    else pen.moveTo(x, y);
  });
  pen.stroke();
}

