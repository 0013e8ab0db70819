// Depth over time on a canvas: time to the right, price upward, darker where more is resting; trades as dots, the spread below.

import { clock } from './format.js';
import { h } from './dom.js';

const LEFT = 8;
const RIGHT = 64;
const TOP = 6;
const BOTTOM = 20;
const SPREAD = 46;
const GAP = 12;

export class HeatMap extends HTMLElement {
  setup() {
    this.columns = [];
    this.trades = [];
    this.canvas = h('canvas', { role: 'img', 'aria-label': 'Depth over time: nothing yet' });
    this.append(this.canvas);
    return this;
  }

  connectedCallback() {
    this.resizing = new ResizeObserver(() => this.draw());
    this.resizing.observe(this);
  }

  disconnectedCallback() {
    this.resizing.disconnect();
  }

  /** Columns [time, bids, asks] with price and size in turn; what is older than `span` milliseconds is not drawn. */
  update(columns, trades, span, now) {
    Object.assign(this, { trades, span, now });
    this.columns = columns.filter(([time]) => time > now - span);
    this.draw();
  }

  draw() {
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    if (!this.isConnected || width === 0) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    if (this.columns.length === 0) return;
    const pen = this.canvas.getContext('2d');
    pen.scale(ratio, ratio);
    const style = getComputedStyle(this);
    const [low, high, most] = this.bounds();
    const bottom = height - BOTTOM - SPREAD - GAP;
    const shape = {
      pen, style, width, height, bottom, low, high, most,
      x: (time) => Math.max(LEFT, LEFT + (1 - (this.now - time) / this.span) * (width - LEFT - RIGHT)),
      y: (price) => bottom - ((price - low) / (high - low)) * (bottom - TOP),
    };
    this.levels(shape);
    this.edges(shape);
    this.dots(shape);
    this.spreads(shape);
    this.axes(shape);
    this.tell();
  }

  /** The prices that are shown, and the largest size; far levels of few columns do not stretch the picture. */
  bounds() {
    const ends = (side) => this.columns.map((column) => column[side].at(-2)).filter((price) => price !== undefined).sort((a, b) => a - b);
    const [bids, asks] = [ends(1), ends(2)];
    const low = bids[Math.floor(bids.length / 10)] ?? asks[0];
    const high = asks[Math.ceil(asks.length * 0.9) - 1] ?? bids.at(-1);
    let most = 0;
    for (const column of this.columns) for (const side of [column[1], column[2]]) for (let at = 1; at < side.length; at += 2) if (side[at] > most) most = side[at];
    const margin = (high - low || Math.abs(high) || 1) * 0.02;
    return [low - margin, high + margin, most || 1];
  }

  levels({ pen, style, x, y, width, bottom, low, high, most }) {
    const colors = [style.getPropertyValue('--series-1'), style.getPropertyValue('--series-3')];
    const tall = Math.max(1.5, (bottom - TOP) / 90);
    this.columns.forEach((column, index) => {
      const from = x(column[0]);
      const to = index + 1 < this.columns.length ? x(this.columns[index + 1][0]) : width - RIGHT;
      for (const side of [0, 1]) {
        pen.fillStyle = colors[side];
        const levels = column[side + 1];
        for (let at = 0; at < levels.length; at += 2) {
          if (levels[at] < low || levels[at] > high) continue;
          pen.globalAlpha = 0.08 + 0.92 * Math.sqrt(levels[at + 1] / most);
          pen.fillRect(from, y(levels[at]) - tall / 2, Math.max(to - from, 1), tall);
        }
      }
    });
    pen.globalAlpha = 1;
  }

  /** The best bid and the best ask as lines. */
  edges({ pen, style, x, y, width }) {
    for (const side of [1, 2]) {
      pen.strokeStyle = style.getPropertyValue('--text');
      pen.lineWidth = 1;
      pen.beginPath();
      let before = null;
      for (const column of this.columns) {
        const price = column[side][0];
        if (price === undefined) continue;
        if (before !== null) pen.lineTo(x(column[0]), y(before));
        pen.lineTo(x(column[0]), y(price));
        before = price;
      }
      if (before !== null) pen.lineTo(width - RIGHT, y(before));
      pen.stroke();
    }
  }

  dots({ pen, style, x, y }) {
    for (const trade of this.trades) {
      if (trade.time_ms <= this.now - this.span || trade.time_ms > this.now) continue;
      pen.fillStyle = style.getPropertyValue({ buy: '--good', sell: '--bad' }[trade.side] ?? '--text');
      pen.beginPath();
      pen.arc(x(trade.time_ms), y(trade.price), 2.5, 0, 7);
      pen.fill();
    }
  }

  spreads({ pen, style, x, width, height }) {
    const values = this.columns.filter((column) => column[1].length && column[2].length).map((column) => [column[0], column[2][0] - column[1][0]]);
    const top = Math.max(...values.map(([, value]) => value), 1e-12);
    const base = height - BOTTOM;
    pen.strokeStyle = style.getPropertyValue('--series-2');
    pen.lineWidth = 1.5;
    pen.beginPath();
    values.forEach(([time, value], index) => {
      const at = base - (Math.max(value, 0) / top) * (SPREAD - 6);
      if (index) pen.lineTo(x(time), at);
      else pen.moveTo(x(time), at);
    });
    if (values.length) pen.lineTo(width - RIGHT, base - (Math.max(values.at(-1)[1], 0) / top) * (SPREAD - 6));
    pen.stroke();
    pen.font = `11px ${style.getPropertyValue('--sans')}`;
    pen.fillStyle = style.getPropertyValue('--faint');
    pen.textBaseline = 'middle';
    pen.textAlign = 'left';
    pen.fillText('spread', width - RIGHT + 6, base - 6);
    pen.fillText(top.toPrecision(3), width - RIGHT + 6, base - SPREAD + 10);
  }

  axes({ pen, style, x, y, width, height, bottom, low, high }) {
    pen.fillStyle = style.getPropertyValue('--faint');
    pen.font = `11px ${style.getPropertyValue('--sans')}`;
    pen.textBaseline = 'middle';
    pen.textAlign = 'left';
    for (let line = 0; line <= 4; line += 1) {
      const price = low + ((high - low) * line) / 4;
      pen.fillText(price.toPrecision(6), width - RIGHT + 6, Math.min(Math.max(y(price), TOP + 6), bottom - 6));
    }
    const ticks = width < 420 ? 2 : 4;
    for (let tick = 0; tick <= ticks; tick += 1) {
      const time = this.now - this.span * (1 - tick / ticks);
      pen.textAlign = tick === 0 ? 'left' : tick === ticks ? 'right' : 'center';
      pen.fillText(clock(time), x(time), height - BOTTOM / 2 + 3);
    }
  }

  tell() {
    const [, bids, asks] = this.columns.at(-1);
    const best = `best bid ${bids[0] ?? 'none'}, best ask ${asks[0] ?? 'none'}`;
    this.canvas.setAttribute('aria-label', `Depth over time: ${this.columns.length} columns, ${best}`);
  }
}

customElements.define('ev-heatmap', HeatMap);
