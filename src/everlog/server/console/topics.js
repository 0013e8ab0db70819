// The page Topics: a list of any length, loaded in pages as it is looked at; all of it only to search or sort.

import { get, repeat } from './api.js';
import { Part, fill, h, notice, say } from './dom.js';
import { bytes, count, counted } from './format.js';
import { Rows } from './rows.js';

const PAGE = 500;
const WHOLE_PAGE = 1000;
const TOPICS_MAX = 200_000;

/** The topics of a prefix by name, loaded as far as they are needed. */
export class TopicList {
  constructor(prefix, signal) {
    this.prefix = prefix;
    this.signal = signal;
    this.entries = [];
    this.begins = [];
    this.isWhole = false;
    this.loading = null;
  }

  /** Load until there are this many, or all; one page at a time. */
  async load(wanted, seen, size = PAGE) {
    while (!this.isWhole && this.entries.length < wanted && !this.signal.aborted) {
      this.loading ??= this.page(size).finally(() => (this.loading = null));
      await this.loading;
      seen?.();
    }
  }

  ask(size, cursor) {
    return get(`/topics?page_size=${size}&prefix=${encodeURIComponent(this.prefix)}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ''}`, this.signal);
  }

  async page(size) {
    const answer = await this.ask(size, this.cursor);
    this.begins.push({ index: this.entries.length, cursor: this.cursor });
    this.entries.push(...answer.topics);
    this.cursor = answer.next_cursor;
    this.isWhole = this.cursor === undefined || this.entries.length >= TOPICS_MAX;
  }
}

/** Ask anew for the pages with these rows of a list, and take over what has changed of the topics in them. */
async function renew(list, rows) {
  for (const begin of new Set(rows.map((row) => list.begins.findLast(({ index }) => index <= row)))) {
    if (!begin) continue;
    const { topics } = await list.ask(WHOLE_PAGE, begin.cursor);
    const fresh = new Map(topics.map((each) => [each.topic, each]));
    const end = Math.min(begin.index + WHOLE_PAGE, list.entries.length);
    for (let index = begin.index; index < end; index += 1) list.entries[index] = fresh.get(list.entries[index].topic) ?? list.entries[index];
  }
}

const byName = (a, b) => (a.topic < b.topic ? -1 : Number(a.topic > b.topic));

class Topics extends Part {
  show() {
    this.sorting = { name: 'topic', isDown: false };
    this.total = 0;
    this.status = h('span', { class: 'faint', role: 'status' });
    this.search = h('input', {
      type: 'search', placeholder: 'Search topics', 'aria-label': 'Search topics', spellcheck: 'false', autocomplete: 'off', oninput: () => this.searchSoon(),
    });
    this.rows = new Rows().setup({
      label: 'Topics', open: ({ topic }) => (location.hash = `#/topics/${encodeURIComponent(topic)}`), need: (index) => this.need(index), sort: (name) => this.sortBy(name),
      empty: notice('empty', 'No topics', 'A topic comes into being with its first record.', h('code', {}, 'everlog topic append orders -d \'{"id": 1}\'')),
      columns: [
        { label: 'Topic', width: 'minmax(160px, 1fr)', narrow: 'minmax(0, 1fr)', sort: 'topic', class: 'mono', cell: (row) => h('a', { href: `#/topics/${encodeURIComponent(row.topic)}`, tabindex: -1 }, row.topic) },
        { label: 'Type', width: '72px', wide: true, cell: (row) => (row.type === 'queue' ? h('span', { class: 'badge' }, 'jobs') : 'log') },
        { label: 'Class', width: '92px', wide: true, sort: 'durability', cell: (row) => row.durability ?? '' },
        { label: 'Records', width: '96px', narrow: '72px', align: 'end', sort: 'count', cell: (row) => count(row.count) },
        { label: 'Size', width: '88px', narrow: '64px', align: 'end', sort: 'bytes', cell: (row) => bytes(row.bytes) },
        { label: 'Head', width: '104px', align: 'end', wide: true, sort: 'head_seq', cell: (row) => count(row.head_seq) },
      ],
    });
    this.problem = h('div');
    fill(this, h('div', { class: 'page-head' }, h('div', { class: 'title' }, h('h1', {}, 'Topics'), this.status), this.search), this.problem, this.rows);
    this.rows.sorted('topic', false);
    this.begin('');
    repeat(() => this.refresh(), 5000, this.signal, (error) => this.failed(error));
  }

  failed(error) {
    fill(this.problem, notice('error', 'The topics cannot be listed', error.message));
  }

  begin(text) {
    this.text = text;
    this.list = new TopicList('', this.signal);
    this.work(this.list.load(1, () => this.draw()));
  }

  work(promise) {
    promise.then(() => fill(this.problem), (error) => this.signal.aborted || this.failed(error));
  }

  /** Totals, and the rows anew: all of them if they come with one page, else those that can be seen by name. */
  async refresh() {
    const { topics } = await get('/overview', this.signal);
    this.total = topics;
    if (topics <= PAGE) {
      const list = new TopicList('', this.signal);
      await list.load(1);
      this.list = list;
    } else if (this.isByName()) await renew(this.list, this.rows.visible);
    this.draw();
  }

  searchSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.text = this.search.value.trim();
      if (this.text) this.loadAll();
      this.draw();
    }, 150);
  }

  sortBy(name) {
    const isDown = this.sorting.name === name ? !this.sorting.isDown : name !== 'topic' && name !== 'durability';
    this.sorting = { name, isDown };
    this.rows.sorted(name, isDown);
    this.loadAll();
    this.draw();
  }

  loadAll() {
    let drawn = 0;
    this.work(this.list.load(Infinity, () => {
      // Sorting all of it again for each page would take longer than the page.
      if (this.list.isWhole || this.list.entries.length > drawn * 2) {
        drawn = this.list.entries.length;
        this.draw();
      } else this.tell();
    }, WHOLE_PAGE));
  }

  /** Whether the rows are the list as it comes. */
  isByName() {
    return !this.text && this.sorting.name === 'topic' && !this.sorting.isDown;
  }

  need(index) {
    if (!this.isByName()) return;
    if (index >= this.list.entries.length - 20) this.work(this.list.load(index + PAGE, () => this.draw()));
  }

  selected() {
    const { name, isDown } = this.sorting;
    const wanted = this.text.toLowerCase();
    let found = wanted ? this.list.entries.filter(({ topic }) => topic.toLowerCase().includes(wanted)) : this.list.entries;
    if (name !== 'topic') found = [...found].sort((a, b) => (a[name] < b[name] ? -1 : Number(a[name] > b[name])) || byName(a, b));
    return isDown ? [...found].reverse() : found;
  }

  draw() {
    const found = this.selected();
    const isPartial = this.isByName() && !this.list.isWhole;
    this.rows.set(found, isPartial ? Math.max(this.total, found.length) : found.length);
    this.found = found.length;
    this.tell();
  }

  tell() {
    const loaded = this.list.isWhole ? '' : `, ${count(this.list.entries.length)} loaded`;
    say(this.status, this.text ? `${counted(this.found, 'topic')} of ${count(Math.max(this.total, this.list.entries.length))} found${loaded}` : `${count(Math.max(this.total, this.list.entries.length))}${this.sorting.name === 'topic' && !this.sorting.isDown ? '' : loaded}`);
  }
}

customElements.define('ev-topics', Topics);
