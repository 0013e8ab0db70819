// The records of a topic: read from where you like, then followed. What is not shown is said, with how much it is.

import { ApiError, Unreachable, askText, at, get, pause } from './api.js';
import { Part, fill, h, icon, notice, say, toast, visible } from './dom.js';
import { clock, count, counted, moment, rate } from './format.js';
import { Rows } from './rows.js';
import { parseExactly, tree } from './tree.js';

const ROWS_MAX = 20_000;
const BYTES_MAX = 32_000_000;
const BATCH = 1000;
const WAIT_MS = 20_000;
const PAUSE_MS = 80;
const TAIL_FIRST = 200;
const PREVIEW = 400;
const REASONS = { cap: 'evicted by a cap', ttl: 'expired', mixed: 'evicted by caps and age', source_trim: 'lost by the source of a router', corrupt: 'lost to damage', recreated: 'the topic was deleted and made again', from_seq_too_old: 'evicted' };

/** What a line of the filter field means to the server. */
export function filterOf(text) {
  if (!text) return undefined;
  if (text.startsWith('[')) return JSON.parse(text);
  return text.endsWith('*') ? ['tag', 'Glob', text] : ['tag', 'Eq', text];
}

/** A place to read from: `{from_seq}` or `{from_time_ms}`. */
export function placeOf(text) {
  if (/^\d+$/.test(text)) return { from_seq: Math.max(0, Number(text) - 1) };
  const today = new Date();
  const time = /^\d{1,2}:\d{2}(:\d{2})?$/.test(text) ? Date.parse(`${today.toDateString()} ${text}`) : Date.parse(text);
  if (Number.isNaN(time)) throw new Error('Enter a seq, a time such as 14:05, or a date and time');
  return { from_time_ms: time };
}

class Records extends Part {
  show() {
    Object.assign(this, { entries: [], size: 0, next: null, isPaused: false, left: 0, rates: [], generation: 0, filter: undefined, holes: 0 });
    this.follow = h('button', { type: 'button', class: 'primary', onclick: () => this.toggle() }, 'Pause');
    this.filterInput = h('input', { type: 'search', 'aria-label': 'Filter', placeholder: 'Filter: tag, tag*, or ["data.price","Gt",100]', spellcheck: 'false', autocomplete: 'off' });
    this.jumpInput = h('input', { 'aria-label': 'Jump to a seq or time', placeholder: 'Seq or 14:05', spellcheck: 'false', autocomplete: 'off', class: 'jump' });
    this.status = h('span', { role: 'status', class: 'faint' });
    this.problem = h('p', { class: 'problem', role: 'alert', hidden: true });
    this.skip = h('button', { type: 'button', hidden: true, onclick: () => this.skipToHead() });
    this.rows = new Rows().setup({
      label: 'Records', rowHeight: 28, open: (row) => this.inspect(row),
      empty: notice('empty', 'No records here', 'New ones appear by themselves.'),
      columns: [
        { label: 'Seq', width: 'var(--seq)', align: 'end', class: 'mono', cell: (row) => count(row.$seq) },
        { label: 'Time', width: '104px', wide: true, class: 'mono faint', cell: (row) => clock(row.$ts, true) },
        { label: 'Tag', width: 'minmax(44px, 112px)', narrow: '64px', class: 'mono', cell: (row) => row.$tag ?? '' },
        { label: 'Data', width: 'minmax(0, 1fr)', class: 'mono data', cell: (row) => (row.preview ??= preview(row.data)) },
      ],
    });
    this.detail = h('aside', { class: 'detail', 'aria-label': 'Record', hidden: true });
    const bar = h('form', { class: 'toolbar', onsubmit: (event) => (event.preventDefault(), this.apply()) },
      this.follow, this.filterInput, this.jumpInput, h('button', {}, 'Show'), h('button', { type: 'button', onclick: () => ((this.jumpInput.value = ''), this.apply()) }, 'Latest'), this.skip, this.status);
    fill(this, bar, this.problem, h('div', { class: 'split' }, this.rows, this.detail));
    this.tail();
  }

  /** Begin at the newest records. */
  async tail() {
    this.jumpInput.value = '';
    try {
      const state = await get(`/topics${at(this.topic)}?touch=false`, this.signal);
      this.restart({ from_seq: Math.max(state.earliest_seq - 1, state.head_seq - TAIL_FIRST, 0) });
    } catch (error) {
      this.say(error);
    }
  }

  say(error) {
    if (this.signal.aborted || error instanceof Unreachable) return;
    this.problem.hidden = !error;
    say(this.problem, error ? error.message : '');
  }

  apply() {
    try {
      this.filter = filterOf(this.filterInput.value.trim());
      const text = this.jumpInput.value.trim();
      this.say(null);
      if (text) this.restart(placeOf(text), true);
      else this.tail();
    } catch (error) {
      this.say(error instanceof SyntaxError ? new Error('The filter is not JSON') : error);
    }
  }

  /** Read from another place; whatever is under way is forgotten. */
  restart(place, isJump = false) {
    this.generation += 1;
    Object.assign(this, { entries: [], size: 0, left: 0, rates: [], next: null, place, isJump });
    this.rows.active = -1;
    this.rows.set([]);
    this.setPaused(false);
    this.run(this.generation);
  }

  toggle() {
    this.setPaused(!this.isPaused);
    if (!this.isPaused) this.run(++this.generation);
  }

  setPaused(isPaused) {
    this.isPaused = isPaused;
    say(this.follow, isPaused ? 'Resume' : 'Pause');
    this.tell();
  }

  /** Read on until paused, or until another place is wanted. */
  async run(generation) {
    const isCurrent = () => generation === this.generation && !this.isPaused && !this.signal.aborted;
    while (isCurrent()) {
      try {
        const from = this.next === null ? this.place : { from_seq: this.next };
        const text = await askText('POST', `/topics${at(this.topic)}/diff`, { ...from, limit: BATCH, wait_ms: this.next === null ? 0 : WAIT_MS, include_tags: true, filter: this.filter }, this.signal);
        // What comes while paused is asked for again by Resume: nothing moves meanwhile, and nothing is left out.
        if (!isCurrent()) return;
        this.take(JSON.parse(text), text.length);
        this.say(null);
        if (this.isJump && this.entries.length >= ROWS_MAX / 2) this.setPaused(true);
      } catch (error) {
        if (this.signal.aborted || generation !== this.generation) return;
        this.say(error);
        if (error instanceof ApiError && error.status < 500 && error.status !== 429) {
          this.setPaused(true);
          return;
        }
        await pause(1000, this.signal);
      }
      await pause(PAUSE_MS, this.signal);
    }
  }

  take(answer, size) {
    const wasAtEnd = this.rows.isAtEnd;
    const before = this.next ?? this.place.from_seq ?? null;
    const { tombstone } = answer;
    let expected = before === null ? null : before + 1;
    if (tombstone) {
      const gone = `seqs ${count(tombstone.gap_from)} to ${count(tombstone.gap_to)} are gone: ${REASONS[tombstone.reason] ?? tombstone.reason} (${counted(tombstone.missed_estimate, 'record')})`;
      this.add({ banner: gone, kind: 'gap', bytes: 0 });
      expected = tombstone.gap_to + 1;
      if (tombstone.reason === 'recreated') expected = answer.earliest_seq;
    }
    const each = Math.ceil(size / Math.max(1, answer.records.length));
    for (const record of answer.records) {
      if (!this.filter && expected !== null && record.$seq > expected) this.addHole(expected, record.$seq - 1);
      expected = record.$seq + 1;
      record.bytes = each;
      this.add(record);
    }
    if (!this.filter && expected !== null && answer.next_from_seq >= expected && answer.records.length + Boolean(tombstone)) this.addHole(expected, answer.next_from_seq);
    this.next = answer.next_from_seq;
    this.lag = answer.lag;
    this.head = answer.head_seq;
    const now = performance.now();
    this.rates = [...this.rates.filter(([time]) => now - time < 3000), [now, answer.records.length]];
    const gone = this.shrink();
    if (gone || answer.records.length || tombstone) {
      if (gone) this.rows.left(gone);
      this.rows.set(this.entries);
      if (wasAtEnd && !this.isJump) this.rows.toEnd();
    }
    this.tell();
  }

  add(entry) {
    this.entries.push(entry);
    this.size += entry.bytes;
  }

  /** Seqs without a record and without a gap: say so, then ask what became of them. */
  addHole(from, to) {
    const words = (why) => `seq ${count(from)}${to > from ? ` to ${count(to)}` : ''}: ${why}`;
    const entry = { banner: words('not here'), kind: 'hole', bytes: 0 };
    this.add(entry);
    if (this.holes >= 50) return;
    this.holes += 1;
    get(`/topics${at(this.topic)}/account?from_seq=${from - 1}&to_seq=${to}`, this.signal).then((account) => {
      const parts = [['deleted', account.deleted], ['evicted by caps', account.evicted], ['expired', account.expired], ['never assigned', account.holes]];
      entry.banner = words(parts.filter(([, number]) => number).map(([word, number]) => `${count(number)} ${word}`).join(', ') || 'not here');
      this.rows.set(this.entries);
    }).catch(() => {}).finally(() => (this.holes -= 1));
  }

  /** Keep to the bounds; what leaves at the top is counted. Returns how many rows left. */
  shrink() {
    let from = 0;
    let size = this.size;
    while (this.entries.length - from > ROWS_MAX || (size > BYTES_MAX && this.entries.length - from > 1)) {
      size -= this.entries[from].bytes;
      if (this.entries[from].$seq) this.left += 1;
      from += 1;
    }
    if (!from) return 0;
    this.entries = this.entries.slice(from);
    this.size = size;
    return from;
  }

  tell() {
    const now = performance.now();
    const recent = this.rates.filter(([time]) => now - time < 3000);
    const perSecond = recent.reduce((sum, [, number]) => sum + number, 0) / 3;
    const parts = [`${counted(this.entries.filter(({ $seq }) => $seq).length, 'record')} shown`];
    if (this.left) parts.push(`${count(this.left)} earlier ones left the view`);
    if (!this.isPaused && perSecond) parts.push(`${rate(perSecond)}/s`);
    if (this.isPaused && this.next !== null) parts.push('paused');
    if (this.lag) parts.push(`${count(this.lag)} behind the head`);
    say(this.status, parts.join(' · '));
    this.skip.hidden = !(this.lag > 2 * BATCH);
    say(this.skip, `Skip ${count(this.lag ?? 0)}`);
  }

  /** Go to the newest records, and say what was left out. */
  skipToHead() {
    const [from, to] = [this.next + 1, Math.max(this.next, this.head - TAIL_FIRST)];
    if (to < from) return;
    this.generation += 1;
    this.add({ banner: `skipped seqs ${count(from)} to ${count(to)} (${counted(to - from + 1, 'record')}) because you asked to`, kind: 'gap', bytes: 0 });
    this.next = to;
    this.rows.set(this.entries);
    this.rows.toEnd();
    this.run(this.generation);
  }

  /** All of one record, read again so that no digit is lost. */
  async inspect(row) {
    this.detail.hidden = false;
    this.classList.add('inspecting');
    const close = h('button', { type: 'button', class: 'quiet', 'aria-label': 'Close the record', onclick: () => this.closeDetail() }, icon('close'));
    const head = h('header', {}, h('h2', {}, `Record ${count(row.$seq)}`), h('button', { type: 'button', onclick: () => this.copy(row) }, icon('copy'), 'Copy'), close);
    const { bytes: _, preview: __, ...asRead } = row;
    let record = asRead;
    try {
      const text = await askText('POST', `/topics${at(this.topic)}/diff`, { from_seq: row.$seq - 1, limit: 1, include_tags: true }, this.signal);
      const found = parseExactly(text).records[0];
      if (found?.$seq === row.$seq) record = found;
    } catch (error) {
      if (this.signal.aborted) return;
    }
    this.inspected = record;
    const facts = [['Seq', count(row.$seq)], ['Time', `${moment(row.$ts)}.${String(row.$ts % 1000).padStart(3, '0')}`]];
    if (row.$tag !== undefined) facts.push(['Tag', row.$tag]);
    if (row.$node !== undefined) facts.push(['Node', row.$node]);
    fill(this.detail, head, h('dl', { class: 'values' }, facts.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', { class: 'mono' }, value)))),
      h('h3', {}, 'Data'), tree(record.data), record.meta ? [h('h3', {}, 'Meta'), tree(record.meta)] : null);
  }

  async copy(row) {
    try {
      await navigator.clipboard.writeText(JSON.stringify(this.inspected ?? row, null, 2));
      toast('Copied as JSON');
    } catch {
      toast('The browser did not allow to copy', 'error');
    }
  }

  closeDetail() {
    this.detail.hidden = true;
    this.classList.remove('inspecting');
    this.rows.scroller.focus();
  }
}

/** Data in one line. */
function preview(data) {
  const text = JSON.stringify(data) ?? '';
  return visible(text.length > PREVIEW ? `${text.slice(0, PREVIEW)}…` : text);
}

customElements.define('ev-records', Records);
