// The page Queues: memory-mapped queues below the directory that the server was started with, and their messages.

import { get, repeat } from './api.js';
import { Part, fill, h, icon, notice, say } from './dom.js';
import { ago, bytes, count, counted, duration, milliseconds, rate } from './format.js';
import { Rows } from './rows.js';

const TAIL = 100;
const DEAD_MS = 5000;

class Bus extends Part {
  show() {
    this.status = h('span', { class: 'faint mono', role: 'status' });
    this.problem = h('div');
    this.rows = new Rows().setup({
      label: 'Queues', open: (row) => this.open(row),
      empty: notice('empty', 'No queues', 'There is no queue below the bus directory.', h('code', {}, 'everlog simulate --queue ./bus/queue --events 100000')),
      columns: [
        { label: 'Queue', width: 'minmax(130px, 1fr)', narrow: 'minmax(0, 1fr)', class: 'mono', cell: (row) => row.queue },
        { label: 'Writer', width: '76px', cell: (row) => h('span', { class: `badge ${{ alive: 'good', dead: 'bad' }[row.writer] ?? ''}` }, row.writer) },
        { label: 'Segments', width: '80px', align: 'end', wide: true, cell: (row) => count(row.segments) },
        { label: 'On disk', width: '80px', align: 'end', cell: (row) => bytes(row.bytes_on_disk) },
        { label: 'Readers', width: '72px', align: 'end', wide: true, cell: (row) => count(row.readers.length) },
        { label: 'Most behind', width: '124px', align: 'end', wide: true, cell: mostBehind },
        { label: 'Last write', width: '104px', wide: true, cell: (row) => (row.error ? h('span', { class: 'badge bad' }, 'damaged') : ago(row.writer_heartbeat_ms)) },
      ],
    });
    this.detail = h('aside', { class: 'detail', 'aria-label': 'Queue', hidden: true });
    this.feeds = h('section', { class: 'feeds', 'aria-label': 'Feeds' });
    fill(this, h('div', { class: 'page-head' }, h('div', { class: 'title' }, h('h1', {}, 'Queues'), this.status)), this.problem, h('div', { class: 'split' }, this.rows, this.detail), this.feeds);
    repeat(() => this.load(), 2000, this.signal, (error) => fill(this.problem, notice('error', 'The queues cannot be listed', error.message)));
  }

  async load() {
    const { root, queues } = await get('/queues', this.signal);
    if (root === null) {
      this.rows.hidden = true;
      fill(this.problem, notice('empty', 'This server shows no queues', 'Start it with the directory they are in.', h('code', {}, 'everlog serve --bus ./bus')));
      return;
    }
    fill(this.problem);
    this.rows.hidden = false;
    say(this.status, root);
    this.rows.set(queues);
    await this.loadFeeds();
    if (this.opened) await this.look();
  }

  async loadFeeds() {
    const { time_ms: now, feeds } = await get('/feeds', this.signal);
    const text = JSON.stringify(feeds.map((feed) => [feed, feedState(feed, now)]));
    if (text === this.feedsShown) return;
    this.feedsShown = text;
    const open = new Set([...this.feeds.querySelectorAll('details[open]')].map((each) => each.dataset.feed));
    fill(this.feeds, feeds.length === 0 ? [] : [h('h2', {}, `Feeds (${count(feeds.length)})`), feeds.map((feed) => this.feed(feed, now, open.has(feed.name)))]);
  }

  /** One connection to a venue: how it is, what it lost and why; opened, each of its symbols. */
  feed(feed, now, isOpen) {
    const symbols = Object.entries(feed.symbols);
    const gaps = symbols.reduce((sum, [, { counts }]) => sum + (counts.gaps ?? 0), 0);
    const reasons = Object.entries(feed.counts).filter(([name, value]) => name.startsWith('gaps_') && value).map(([name, value]) => `${count(value)} ${name.slice(5)}`);
    const [kind, state] = feedState(feed, now);
    const head = ['Symbol', 'Book', 'Updates', 'Trades', 'Snapshots', 'Gaps', 'Lag'];
    const cells = ([name, { is_live: isLive, counts, lag_ms: lag }]) => [name, h('span', { class: `badge ${isLive ? 'good' : 'warn'}` }, isLive ? 'live' : 'waiting'),
      ...['diffs', 'trades', 'snapshots'].map((each) => count(counts[each] ?? 0)), h('span', { class: counts.gaps ? 'badge bad' : '' }, count(counts.gaps ?? 0)), milliseconds(Math.max(0, lag))];
    return h('details', { class: 'card feed', 'data-feed': feed.name, open: isOpen },
      h('summary', {}, h('strong', { class: 'mono' }, feed.name), h('span', {}, feed.venue), h('span', { class: `badge ${kind}` }, state),
        kind === 'bad' ? null : h('span', {}, `${rate(feed.frames_per_s)} frames/s`), h('span', { class: gaps ? 'badge bad' : 'faint' }, reasons.length ? `${counted(gaps, 'gap')}: ${reasons.join(', ')}` : counted(gaps, 'gap'))),
      h('div', { class: 'table-wrap', tabindex: 0, role: 'region', 'aria-label': `Symbols of ${feed.name}` }, h('table', { 'aria-label': `Symbols of ${feed.name}` },
        h('thead', {}, h('tr', {}, head.map((label, index) => h('th', { scope: 'col', class: index > 1 ? 'end' : null }, label)))),
        h('tbody', {}, symbols.map((each) => h('tr', {}, cells(each).map((cell, index) => h('td', { class: index > 1 ? 'end' : index ? null : 'mono' }, cell))))))));
  }

  async open(row) {
    this.opened = row.queue;
    this.from = null;
    this.detail.hidden = false;
    this.classList.add('inspecting');
    this.facts = h('div', {});
    this.messages = h('div', { class: 'messages' });
    const seek = h('input', { class: 'jump', 'aria-label': 'First seq', placeholder: 'seq', inputmode: 'numeric' });
    const bar = h('form', { class: 'toolbar', onsubmit: (event) => {
      event.preventDefault();
      this.from = /^\d+$/.test(seek.value) ? Number(seek.value) : null;
      this.look().catch(() => {});
    } }, seek, h('button', {}, 'Show'), h('button', { type: 'button', onclick: () => ((seek.value = ''), (this.from = null), this.look().catch(() => {})) }, 'Latest'));
    fill(this.detail, h('header', {}, h('h2', { class: 'mono' }, row.queue), h('button', { type: 'button', class: 'quiet', 'aria-label': 'Close the queue', onclick: () => this.close() }, icon('close'))), this.facts, h('h3', {}, 'Messages'), bar, this.messages);
    await this.look().catch((error) => this.signal.aborted || fill(this.facts, notice('error', 'The queue cannot be read', error.message)));
  }

  close() {
    this.opened = null;
    this.detail.hidden = true;
    this.classList.remove('inspecting');
    this.rows.scroller.focus();
  }

  async look() {
    const name = encodeURIComponent(this.opened);
    const [{ queues: [state] }, tail] = await Promise.all([
      get(`/queues?queue=${name}`, this.signal),
      get(`/queues/messages?queue=${name}&limit=${TAIL}${this.from === null ? '' : `&from_seq=${this.from}`}`, this.signal),
    ]);
    if (!this.opened) return;
    const held = state.first_seq === null ? 'no messages' : `${counted(state.last_seq - state.first_seq + 1, 'message')}, seq ${count(state.first_seq)} to ${count(state.last_seq)}`;
    fill(this.facts, state.error ? notice('error', 'Damaged', state.error) : null, h('p', {}, held),
      state.readers.length === 0 ? h('p', { class: 'faint' }, 'No named readers') : h('div', { class: 'table-wrap', tabindex: 0, role: 'region', 'aria-label': 'Readers' }, h('table', { 'aria-label': 'Readers' },
        h('thead', {}, h('tr', {}, ['Reader', 'Next seq', 'Lag', 'Behind', 'Heartbeat'].map((label) => h('th', { scope: 'col' }, label)))),
        h('tbody', {}, state.readers.map((reader) => h('tr', {}, h('td', { class: 'mono' }, reader.name), h('td', {}, reader.next_seq === null ? '' : count(reader.next_seq)),
          h('td', {}, reader.error ?? lagOf(reader)), h('td', {}, reader.lag_ms === null ? '' : duration(reader.lag_ms)), h('td', {}, reader.heartbeat_ms ? ago(reader.heartbeat_ms) : 'never')))))));
    const text = JSON.stringify(tail.messages);
    if (text === this.shown) return;
    this.shown = text;
    fill(this.messages, tail.messages.length === 0 ? h('p', { class: 'faint' }, 'None') : tail.messages.toReversed().map((message) => h('details', {}, h('summary', { class: 'mono' }, `${count(message.seq)}  type ${message.type_id}  ${bytes(message.length)}  `, h('span', { class: 'faint' }, (message.payload_text ?? message.payload_hex).slice(0, 80))),
      h('pre', { tabindex: 0, role: 'group', 'aria-label': 'Payload as hex' }, hexRows(message.payload_hex)), message.payload_text === null ? null : h('pre', { tabindex: 0, role: 'group', 'aria-label': 'Payload as text' }, message.payload_text))));
  }
}

const lagOf = (reader) => (reader.lag_messages === null ? bytes(reader.lag_bytes ?? 0) : counted(reader.lag_messages, 'message'));

/** How far the reader that is most behind is: in messages, or in bytes where counting them took too long. */
function mostBehind({ readers }) {
  if (readers.length === 0) return '';
  const most = readers.reduce((most, reader) => ((reader.lag_bytes ?? 0) > (most.lag_bytes ?? 0) ? reader : most));
  return most.lag_bytes === 0 ? 'none' : lagOf(most);
}

/** What a feed is, as a kind of badge and a word; one whose process died cannot say so. */
function feedState(feed, now) {
  const age = now - feed.updated_ns / 1e6;
  if (age > DEAD_MS) return ['bad', `not running, last heard of ${duration(age)} ago`];
  return feed.is_connected ? ['good', 'connected'] : ['warn', 'not connected'];
}

/** Rows of 16 bytes, with their offset. */
function hexRows(hex) {
  const rows = [];
  for (let at = 0; at < hex.length; at += 32) rows.push(`${(at / 2).toString(16).padStart(4, '0')}  ${hex.slice(at, at + 32).replace(/../g, '$& ').trim()}`);
  return rows.join('\n');
}

customElements.define('ev-bus', Bus);
