// The page Market: the order book of a market in a queue or a topic, its depth over time, spread and trades; live, or replayed.

import { ApiError, get, pause, repeat } from './api.js';
import { Part, fill, h, notice, say } from './dom.js';
import { clock, count, moment } from './format.js';
import { HeatMap } from './heatmap.js';

const LEVELS = 12;
const TRADES = 20;
const SPANS = { '1 min': 250, '4 min': 1000, '16 min': 4000 };
const SPEEDS = [0.1, 0.5, 1, 2, 5, 10, 60];
const TICK_MS = 250;
const BUSY_MS = 30;
const TRIED_MAX = 50;

const TOPIC = 'topic:';

/** Where the events are, as the server is asked for it. */
const sourceOf = (name) => (name.startsWith(TOPIC) ? `topic=${encodeURIComponent(name.slice(TOPIC.length))}` : `queue=${encodeURIComponent(name)}`);

const option = (value, text, chosen) => h('option', { value, selected: value === chosen }, text);

class Market extends Part {
  show() {
    [this.queue = '', this.symbol = '', this.venue = ''] = this.place ?? [];
    this.step = SPANS['1 min'];
    this.replay = null;
    this.columns = [];
    this.problem = h('div');
    this.queues = h('select', { 'aria-label': 'Queue', onchange: () => this.go(this.queues.value, '', '') });
    this.topic = h('input', { type: 'search', 'aria-label': 'Topic', placeholder: 'or a topic', spellcheck: 'false', autocomplete: 'off', value: this.queue.startsWith(TOPIC) ? this.queue.slice(TOPIC.length) : '' });
    this.topicForm = h('form', { class: 'toolbar', onsubmit: (event) => (event.preventDefault(), this.go(this.topic.value.trim() ? `${TOPIC}${this.topic.value.trim()}` : '', '', '')) }, this.topic);
    this.markets = h('select', { 'aria-label': 'Market', hidden: true, onchange: () => this.go(this.queue, ...this.markets.value.split(' ')) });
    this.tiles = h('dl', { class: 'tiles' });
    this.map = new HeatMap().setup();
    this.ladder = h('tbody');
    this.trades = h('tbody');
    this.body = h('div', { class: 'market', hidden: true }, this.tiles,
      h('section', { class: 'card depth' }, h('header', {}, h('h2', {}, 'Depth'), this.choice('Span', Object.keys(SPANS), '1 min', (name) => this.choose(SPANS[name]))), this.map),
      h('section', { class: 'card book' }, h('h2', {}, 'Order book'), table('Order book', ['Side', 'Price', 'Size'], this.ladder, 'ladder-table')),
      h('section', { class: 'card' }, h('h2', {}, 'Trades'), table('Trades', ['Time', 'Side', 'Price', 'Size'], this.trades)));
    fill(this, h('div', { class: 'page-head' }, h('h1', {}, 'Market'), h('div', { class: 'toolbar' }, this.queues, this.topicForm, this.markets,
      this.choice('Time', ['Live', 'Replay'], 'Live', (name) => this.switch(name)))), this.controls(), this.problem, this.body);
    const failed = (error) => fill(this.problem, notice('error', 'The market cannot be shown', error.message));
    this.list().catch((error) => this.signal.aborted || failed(error));
    repeat(() => this.load(), () => this.wait ?? TICK_MS, this.signal, failed);
  }

  /** Buttons of which one is pressed. */
  choice(label, names, chosen, pick) {
    return h('div', { class: 'choice', role: 'group', 'aria-label': label }, names.map((name) => h('button', {
      type: 'button', 'aria-pressed': String(name === chosen), onclick: ({ target }) => {
        for (const each of target.parentElement.children) each.setAttribute('aria-pressed', String(each === target));
        pick(name);
      },
    }, name)));
  }

  controls() {
    this.playing = h('button', { type: 'button', onclick: () => this.play(!this.replay.isPlaying) }, 'Pause');
    this.speed = h('select', { 'aria-label': 'Speed', onchange: () => (this.replay.speed = Number(this.speed.value)) }, SPEEDS.map((speed) => option(String(speed), `${speed} ×`, '1')));
    this.slider = h('input', { type: 'range', 'aria-label': 'Time of the replay', step: 1, min: 0, max: 1, oninput: () => this.jump(Number(this.slider.value)) });
    this.clock = h('span', { class: 'mono' });
    this.bar = h('div', { class: 'toolbar replay', hidden: true }, this.playing, this.speed, this.slider, this.clock);
    return this.bar;
  }

  go(queue, symbol, venue) {
    location.hash = ['#/market', queue, symbol, venue].filter((word, at) => at === 0 || word).map((word, at) => (at ? encodeURIComponent(word) : word)).join('/');
  }

  async list() {
    const { root, queues } = await get('/queues', this.signal);
    const isTopic = this.queue.startsWith(TOPIC);
    this.queues.hidden = !queues.length;
    fill(this.queues, isTopic ? option('', 'Queue', '') : null, queues.map((one) => option(one.queue, one.queue, this.queue)));
    if (!isTopic && (root === null || queues.length === 0)) {
      const [title, text] = root === null ? ['This server shows no queues', 'Start it with the directory they are in, or name a topic to which a bridge forwards market data.'] : ['No queues', 'There is no queue below the bus directory.'];
      fill(this.problem, notice('empty', title, text, h('code', {}, root === null ? 'everlog serve --bus ./bus' : 'everlog simulate --queue ./bus/queue --speed 1 --seconds 600')));
      return;
    }
    const markets = await this.findMarkets(queues);
    const { queue } = this;
    this.markets.hidden = markets.length === 0;
    if (markets.length === 0) {
      fill(this.problem, notice('empty', 'No order books', isTopic ? `There are no book events in the topic ${queue.slice(TOPIC.length)}.` : `There are no book events in the queue ${queue}. Choose another one.`));
      return;
    }
    const own = markets.find((one) => [one.symbol, String(one.market_id)].includes(this.symbol)) ?? markets[0];
    const symbol = this.symbol || (own.symbol ?? String(own.market_id));
    fill(this.markets, markets.map((one) => {
      const name = one.symbol ?? String(one.market_id);
      return option(`${name} ${one.venue_id}`, `${name} (${one.venue ?? `venue ${one.venue_id}`})`, `${symbol} ${own.venue_id}`);
    }));
    this.asked = `/markets/book?${sourceOf(queue)}&symbol=${encodeURIComponent(symbol)}&venue_id=${this.venue || own.venue_id}&levels=${LEVELS}`;
  }

  /** The markets of the queue or topic; if none was chosen, of the first queue that has order books. */
  async findMarkets(queues) {
    if (this.queue) return this.marketsOf(this.queue);
    for (const { queue } of queues.slice(0, TRIED_MAX)) {
      const markets = await this.marketsOf(queue).catch((error) => {
        if (error instanceof ApiError) return [];
        throw error;
      });
      if (markets.length) {
        this.queue = this.queues.value = queue;
        return markets;
      }
    }
    this.queue = queues[0].queue;
    return [];
  }

  /** A topic is read first, as far as each request has time for. */
  async marketsOf(queue) {
    for (;;) {
      const { markets, is_whole: isWhole } = await get(`/markets?${sourceOf(queue)}`, this.signal);
      if (isWhole) return markets;
      fill(this.problem, notice('empty', 'Reading the topic', 'Its last million records are looked at.'));
      await pause(BUSY_MS, this.signal);
    }
  }

  choose(step) {
    this.step = step;
    this.columns = [];
  }

  switch(name) {
    this.bar.hidden = name === 'Live';
    this.columns = [];
    this.replay = name === 'Live' ? null : { at: this.seen?.first_ms ?? 0, speed: Number(this.speed.value), isPlaying: true, then: performance.now() };
    this.play(true);
  }

  play(isPlaying) {
    say(this.playing, isPlaying ? 'Pause' : 'Play');
    if (this.replay) Object.assign(this.replay, { isPlaying, then: performance.now() });
  }

  jump(at) {
    if (at < this.replay.at) this.columns = [];
    this.replay.at = at;
  }

  /** Where the replay is now. While the server is on its way there, its time stands still. */
  time(last) {
    const { replay } = this;
    const now = performance.now();
    if (replay.isPlaying && !this.isWaiting) replay.at = Math.min(replay.at + (now - replay.then) * replay.speed, last);
    replay.then = now;
    return Math.floor(replay.at);
  }

  async load() {
    if (!this.asked) return;
    const { asked, step, replay } = this;
    const at = replay && this.seen ? `&at_ms=${this.time(this.seen.last_ms)}` : '';
    const after = this.columns.length ? `&after_ms=${this.columns.at(-1)[0]}` : '';
    const book = await get(`${asked}&step_ms=${step}${at}${after}`, this.signal);
    if (asked !== this.asked || step !== this.step || replay !== this.replay) return;
    this.isWaiting = !book.is_there;
    this.wait = book.is_there ? TICK_MS : BUSY_MS;
    this.seen = book;
    if (replay) this.showReplay(book, replay);
    if (!book.is_there) {
      fill(this.problem, notice('empty', 'Building the book', `${Math.round(book.progress * 100)} % of what is known is read.`));
      return;
    }
    this.add(book.columns);
    this.draw(book, replay ? replay.at : book.last_ms);
  }

  /** New columns; the last known one may have grown. One that is older than these begins a new picture. */
  add(columns) {
    const first = columns[0]?.[0] ?? Infinity;
    this.columns = [...this.columns.filter(([time]) => time < first), ...columns].slice(-240);
  }

  showReplay({ first_ms: first, last_ms: last }, { at }) {
    this.slider.min = first;
    this.slider.max = last;
    if (document.activeElement !== this.slider || this.replay.isPlaying) this.slider.value = at;
    this.slider.setAttribute('aria-valuetext', moment(at));
    say(this.clock, moment(at));
  }

  draw(book, now) {
    const parts = [];
    if (book.error) parts.push(notice('error', 'The book ends here', book.error));
    else if (book.mode === null) parts.push(notice('empty', 'No book', 'Up to this time there is no event from which a book can begin.'));
    fill(this.problem, parts);
    this.body.hidden = book.mode === null;
    this.showTiles(book);
    this.map.update(this.columns, book.trades, this.step * 240, now);
    this.showLadder(book);
    fill(this.trades, book.trades.slice(-TRADES).toReversed().map((trade) => h('tr', { class: trade.side }, h('td', { class: 'mono' }, clock(trade.time_ms, true)), h('td', {}, trade.side), h('td', { class: 'end' }, String(trade.price)), h('td', { class: 'end' }, String(trade.size)))));
  }

  showTiles({ bids, asks, trades, bid_count: bidCount, ask_count: askCount, gaps, unknown_orders: unknown, mode }) {
    const [bid, ask] = [bids[0], asks[0]];
    const spread = bid && ask ? Number(ask[0]) - Number(bid[0]) : null;
    const digits = Math.max(...[bid, ask].map((level) => level?.[0].split('.')[1]?.length ?? 0));
    const middle = bid && ask ? (Number(ask[0]) + Number(bid[0])) / 2 : 0;
    const last = trades.at(-1);
    const tiles = [
      ['Best bid', bid ? padded(bid[0], digits) : 'none', bid ? `${bid[1]} to buy` : ''],
      ['Best ask', ask ? padded(ask[0], digits) : 'none', ask ? `${ask[1]} to sell` : ''],
      ['Spread', spread === null ? 'none' : spread.toFixed(digits), spread === null ? 'a side is empty' : basisPoints(spread, middle)],
      ['Last trade', last ? String(last.price) : 'none', last ? `${last.size}, ${last.side === 'unknown' ? 'side unknown' : last.side}` : ''],
      ['Levels', count(bidCount + askCount), `${count(bidCount)} bids, ${count(askCount)} asks`],
      ['Gaps', count(gaps), mode === 'l3' ? `${count(unknown)} unknown orders` : 'in the numbers of updates'],
    ];
    if (this.tiles.childElementCount !== tiles.length) fill(this.tiles, tiles.map(([name]) => h('div', {}, h('dt', {}, name), h('dd', {}), h('dd', { class: 'faint' }))));
    tiles.forEach(([, value, more], index) => {
      const [, shown, below] = this.tiles.children[index].children;
      say(shown, value);
      say(below, more);
    });
  }

  /** Asks above, bids below; the rows stay, so that a screen reader keeps its place. */
  showLadder({ bids, asks }) {
    const rows = [...asks.toReversed().map((level) => ['ask', ...level]), ...bids.map((level) => ['bid', ...level])];
    const most = Math.max(...rows.map(([, , size]) => Number(size)), 1e-12);
    while (this.ladder.childElementCount > rows.length) this.ladder.lastChild.remove();
    while (this.ladder.childElementCount < rows.length) this.ladder.append(h('tr', {}, h('td', {}), h('td', { class: 'end mono' }), h('td', { class: 'end mono size' })));
    const digits = [1, 2].map((at) => Math.max(...rows.map((row) => row[at].split('.')[1]?.length ?? 0)));
    rows.forEach(([side, price, size], index) => {
      const row = this.ladder.children[index];
      row.className = side;
      [side, padded(price, digits[0]), padded(size, digits[1])].forEach((text, at) => say(row.children[at], text));
      row.style.setProperty('--share', `${Math.round((Number(size) / most) * 100)}%`);
    });
  }
}

/** A spread as a share of the price in the middle; around a price of 0 there is none. */
function basisPoints(spread, middle) {
  return middle > 0 ? `${((spread / middle) * 10_000).toFixed(2)} basis points` : 'no share of a price at or below 0';
}

/** A decimal with zeros at its end, so that points stand below each other. */
function padded(text, digits) {
  const own = text.split('.')[1]?.length ?? 0;
  return own >= digits ? text : `${text}${own ? '' : '.'}${'0'.repeat(digits - own)}`;
}

/** A table with a name and heads of columns. */
function table(label, heads, body, kind = '') {
  return h('div', { class: 'table-wrap', tabindex: 0, role: 'region', 'aria-label': label }, h('table', { class: kind, 'aria-label': label }, h('thead', {}, h('tr', {}, heads.map((head) => h('th', { scope: 'col', class: ['Price', 'Size'].includes(head) ? 'end' : null }, head)))), body));
}

customElements.define('ev-market', Market);
