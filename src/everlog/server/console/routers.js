// The page Routers: the graph of topics that are copied into each other, with flow and lag on each edge.

import { pages, repeat } from './api.js';
import { Part, fill, h, notice, say, visible } from './dom.js';
import { count, counted, rate } from './format.js';
import { Rows } from './rows.js';

const SVG = 'http://www.w3.org/2000/svg';
const DRAWN_MAX = 150;
const BOX = { width: 176, height: 34, gap: 18, column: 330, margin: 12 };

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children.map((child) => (child instanceof Node ? child : visible(child))));
  return element;
}

/** A place for each topic: columns in the direction of the copies, rows near what they are joined to. */
export function layout(routers) {
  const names = [...new Set(routers.flatMap(({ source, dest }) => [source, dest]))].sort();
  const column = new Map(names.map((name) => [name, 0]));
  // A circle would push its topics on without end; as many rounds as there are topics are enough without one.
  for (let round = 0; round < names.length; round += 1) {
    let isMoved = false;
    for (const { source, dest } of routers) {
      const wanted = column.get(source) + 1;
      if (column.get(dest) < wanted && wanted < names.length) {
        column.set(dest, wanted);
        isMoved = true;
      }
    }
    if (!isMoved) break;
  }
  const columns = [];
  for (const name of names) (columns[column.get(name)] ??= []).push(name);
  const places = new Map();
  columns.filter(Boolean).forEach((members, index) => {
    const nearness = (name) => {
      const rows = routers.filter(({ dest }) => dest === name).map(({ source }) => places.get(source)?.y ?? 0);
      return rows.length ? rows.reduce((sum, y) => sum + y, 0) / rows.length : 0;
    };
    members.sort((a, b) => nearness(a) - nearness(b) || (a < b ? -1 : 1));
    members.forEach((name, row) => places.set(name, { x: BOX.margin + index * BOX.column, y: BOX.margin + row * (BOX.height + BOX.gap) }));
  });
  return places;
}

const short = (name, length) => (name.length > length ? `${name.slice(0, length - 1)}…` : name);

class Routers extends Part {
  show() {
    this.flows = new Map();
    this.edges = new Map();
    this.drawn = '';
    this.status = h('span', { class: 'faint', role: 'status' });
    this.graph = h('div', { class: 'graph', tabindex: 0, role: 'region', 'aria-label': 'Graph' });
    this.problem = h('div');
    this.rows = new Rows().setup({
      label: 'Routers', open: ({ dest }) => (location.hash = `#/topics/${encodeURIComponent(dest)}`),
      empty: notice('empty', 'No routers', 'A router copies the records of one topic into another.', h('code', {}, 'everlog router put mirror orders orders.copy --create')),
      columns: [
        { label: 'Router', width: 'minmax(110px, 1fr)', narrow: 'minmax(0, 1fr)', class: 'mono', cell: (row) => row.router },
        { label: 'From', width: 'minmax(90px, 1fr)', narrow: 'minmax(0, 1fr)', class: 'mono', cell: (row) => row.source },
        { label: 'To', width: 'minmax(90px, 1fr)', narrow: 'minmax(0, 1fr)', class: 'mono', cell: (row) => row.dest },
        { label: 'Records / s', width: '92px', align: 'end', wide: true, cell: (row) => rate(this.flow(row)) },
        { label: 'Lag', width: '80px', narrow: '64px', align: 'end', cell: (row) => this.lag(row) },
        { label: 'Copied', width: '100px', align: 'end', wide: true, cell: (row) => count(row.forwarded_total) },
        { label: 'Guarantee', width: '112px', wide: true, cell: (row) => row.guarantee.replaceAll('_', ' ') },
      ],
    });
    fill(this, h('div', { class: 'page-head' }, h('div', { class: 'title' }, h('h1', {}, 'Routers'), this.status)), this.problem, this.graph, this.rows);
    repeat(() => this.load(), 2000, this.signal, (error) => fill(this.problem, notice('error', 'The routers cannot be listed', error.message)));
  }

  flow({ router }) {
    return this.flows.get(router)?.perSecond ?? 0;
  }

  lag({ lag }) {
    if (lag === undefined) return '';
    return lag ? h('span', { class: 'badge warn' }, count(lag)) : '0';
  }

  async load() {
    const routers = await pages('/routers?lag=true', 'routers', this.signal, 10_000);
    const now = performance.now();
    for (const { router, forwarded_total: total } of routers) {
      const before = this.flows.get(router);
      const perSecond = before ? Math.max(0, ((total - before.total) * 1000) / (now - before.now)) : 0;
      this.flows.set(router, { total, now, perSecond });
    }
    fill(this.problem);
    say(this.status, count(routers.length));
    this.rows.set(routers);
    this.draw(routers);
  }

  draw(routers) {
    this.graph.hidden = routers.length === 0;
    if (this.graph.hidden) return;
    // The graph is drawn anew only if it has other topics or routers: what has the focus keeps it.
    const edges = JSON.stringify(routers.map(({ router, source, dest }) => [router, source, dest]));
    if (edges !== this.drawn) this.drawGraph(routers);
    this.drawn = edges;
    for (const router of routers) this.showFlow(router);
  }

  drawGraph(routers) {
    this.edges.clear();
    if (routers.length > DRAWN_MAX) {
      fill(this.graph, h('p', { class: 'faint' }, `${counted(routers.length, 'router')} are too many to draw; the list has all of them.`));
      return;
    }
    const places = layout(routers);
    const width = Math.max(...[...places.values()].map(({ x }) => x)) + BOX.width + BOX.margin;
    const height = Math.max(...[...places.values()].map(({ y }) => y)) + BOX.height + BOX.margin;
    const picture = svg('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'group', 'aria-label': `Graph of ${counted(routers.length, 'router')} between ${counted(places.size, 'topic')}` });
    const between = new Map();
    for (const router of routers) {
      const pair = JSON.stringify([router.source, router.dest]);
      between.set(pair, (between.get(pair) ?? 0) + 1);
      picture.append(...this.edge(router, places, between.get(pair) - 1));
    }
    for (const [name, { x, y }] of places) {
      const link = svg('a', { href: `#/topics/${encodeURIComponent(name)}`, class: 'node', 'aria-label': name },
        svg('title', {}, name), svg('rect', { x, y, width: BOX.width, height: BOX.height, rx: 7 }), svg('text', { x: x + 12, y: y + 21 }, short(name, 22)));
      picture.append(link);
    }
    fill(this.graph, picture);
  }

  edge(router, places, number) {
    const [from, to] = [places.get(router.source), places.get(router.dest)];
    const [x1, y1] = [from.x + BOX.width, from.y + BOX.height / 2];
    const [x2, y2] = [to.x, to.y + BOX.height / 2];
    const bend = Math.max(60, Math.abs(x2 - x1) / 2);
    const shift = number * 14;
    const path = svg('path', { d: `M${x1} ${y1 + shift / 4} C${x1 + bend} ${y1 + shift} ${x2 - bend} ${y2 + shift} ${x2 - 5} ${y2}` });
    const label = svg('text', { class: 'edge-label', x: (x1 + x2) / 2, y: (y1 + y2) / 2 + shift - 5, 'text-anchor': 'middle' });
    const arrow = svg('path', { d: `M${x2 - 8} ${y2 - 4} L${x2 - 1} ${y2} L${x2 - 8} ${y2 + 4}` });
    this.edges.set(router.router, { path, arrow, label });
    return [path, arrow, label];
  }

  showFlow(router) {
    const edge = this.edges.get(router.router);
    if (!edge) return;
    const kind = router.lag ? 'edge behind' : this.flow(router) ? 'edge flowing' : 'edge';
    const words = `${rate(this.flow(router))}/s${router.lag ? ` · ${count(router.lag)} behind` : ''}`;
    edge.path.setAttribute('class', kind);
    edge.arrow.setAttribute('class', `${kind} arrow`);
    edge.label.replaceChildren(svg('title', {}, `${visible(router.router)}: ${words}`), visible(`${short(router.router, 18)}  ${words}`));
  }
}

customElements.define('ev-routers', Routers);
