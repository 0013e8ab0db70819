// The page Consumers: how far each stored cursor is behind, where it is going, and how to move it.

import { ask, at, pages, repeat } from './api.js';
import { sparkline } from './chart.js';
import { Part, confirmed, fill, h, icon, notice, say, toast } from './dom.js';
import { ago, count, counted, duration, moment } from './format.js';
import { card } from './overview.js';
import { Rows } from './rows.js';

const TREND = 60;
const SHOWN_MAX = 5000;

/** How long, of which a narrow list shows the first unit. */
function behind(ms) {
  const [, first, rest] = /^(\S+ \S+)(.*)/.exec(duration(ms ?? 0));
  return [first, h('span', { class: 'wide' }, rest)];
}

class Consumers extends Part {
  show() {
    this.trends = new Map();
    this.all = [];
    this.status = h('span', { class: 'faint', role: 'status' });
    this.search = h('input', { type: 'search', 'aria-label': 'Search consumers', placeholder: 'Search topic or consumer', oninput: () => this.draw() });
    this.rows = new Rows().setup({
      label: 'Consumers', rowHeight: 36, open: (row) => this.open(row),
      empty: notice('empty', 'No consumers', 'A consumer is a cursor that the server keeps under a name.', h('code', {}, 'PUT /v0/topics/orders/consumers/billing')),
      columns: [
        { label: 'Consumer', width: 'minmax(110px, 1fr)', narrow: 'minmax(64px, 1fr)', class: 'mono', cell: (row) => row.name },
        { label: 'Topic', width: 'minmax(100px, 1fr)', narrow: 'minmax(0, 1fr)', class: 'mono', cell: (row) => row.topic },
        { label: 'Lag', width: '88px', narrow: '48px', align: 'end', cell: (row) => count(row.lag_records) },
        { label: 'Behind', width: '96px', narrow: '56px', align: 'end', cell: (row) => behind(row.lag_ms) },
        { label: 'Trend', width: '104px', wide: true, cell: (row) => this.trend(row) },
        { label: 'Owner', width: '110px', wide: true, cell: (row) => row.owner ?? h('span', { class: 'faint' }, 'none') },
        { label: '', width: '76px', narrow: '56px', align: 'end', cell: (row) => (row.at_risk ? h('span', { class: 'badge bad' }, 'at risk') : row.hold ? h('span', { class: 'badge' }, 'holds') : '') },
      ],
    });
    this.detail = h('aside', { class: 'detail', 'aria-label': 'Consumer', hidden: true });
    this.problem = h('div');
    this.risk = h('div', { class: 'alerts' });
    fill(this, h('div', { class: 'page-head' }, h('div', { class: 'title' }, h('h1', {}, 'Consumers'), this.status), this.search), this.problem, this.risk, h('div', { class: 'split' }, this.rows, this.detail));
    repeat(() => this.load(), 2000, this.signal, (error) => fill(this.problem, notice('error', 'The consumers cannot be listed', error.status === 404 ? 'This server is older than the console.' : error.message)));
  }

  async load() {
    this.all = await pages('/consumers', 'consumers', this.signal, SHOWN_MAX);
    fill(this.problem);
    const seen = new Set();
    for (const each of this.all) {
      const key = JSON.stringify([each.topic, each.name]);
      seen.add(key);
      this.trends.set(key, [...(this.trends.get(key) ?? []), each.lag_records].slice(-TREND));
    }
    for (const key of this.trends.keys()) if (!seen.has(key)) this.trends.delete(key);
    const risky = this.all.filter(({ at_risk: isAtRisk }) => isAtRisk);
    fill(this.risk, risky.length ? h('p', { class: 'alert warning' }, h('span', { class: 'badge' }, 'warning'), `${counted(risky.length, 'consumer')} ${risky.length === 1 ? 'has' : 'have'} lost records to eviction, or soon will: ${risky.slice(0, 5).map(({ name }) => name).join(', ')}`) : []);
    this.draw();
    if (this.opened) this.showState(this.all.find(({ topic, name }) => topic === this.opened.topic && name === this.opened.name));
  }

  draw() {
    const wanted = this.search.value.trim().toLowerCase();
    const found = this.all.filter(({ topic, name }) => `${topic} ${name}`.toLowerCase().includes(wanted));
    found.sort((a, b) => b.at_risk - a.at_risk || b.lag_records - a.lag_records || (a.name < b.name ? -1 : 1));
    say(this.status, `${count(found.length)}${this.all.length >= SHOWN_MAX ? ', the first ones' : ''}`);
    this.rows.set(found);
  }

  trend(row) {
    const values = this.trends.get(JSON.stringify([row.topic, row.name])) ?? [];
    const change = values.length > 1 ? values.at(-1) - values[0] : 0;
    const canvas = h('canvas', { class: 'spark', role: 'img', 'data-values': values.join(' '), 'aria-label': change > 0 ? 'lag grows' : change < 0 ? 'lag shrinks' : 'lag is steady' });
    const style = getComputedStyle(this);
    queueMicrotask(() => sparkline(canvas, values.length > 1 ? values : [row.lag_records, row.lag_records], style.getPropertyValue(change > 0 ? '--series-3' : '--series-1')));
    return canvas;
  }

  open(row) {
    this.opened = row;
    this.detail.hidden = false;
    this.classList.add('inspecting');
    const close = h('button', { type: 'button', class: 'quiet', 'aria-label': 'Close the consumer', onclick: () => this.close() }, icon('close'));
    this.state = h('div', {});
    fill(this.detail, h('header', {}, h('h2', { class: 'mono' }, row.name), close), this.state, this.resetForm(row), this.deleteButton(row));
    this.showState(row);
  }

  close() {
    this.opened = null;
    this.detail.hidden = true;
    this.classList.remove('inspecting');
    this.rows.scroller.focus();
  }

  showState(state) {
    if (!state) return;
    const rows = [
      ['Topic', h('a', { href: `#/topics/${encodeURIComponent(state.topic)}` }, state.topic)],
      ['Cursor', `${count(state.cursor)} of ${count(state.head_seq)}`],
      ['Lag', `${counted(state.lag_records, 'record')}${state.lag_ms ? `, ${duration(state.lag_ms)}` : ''}`],
      ['Last commit', ago(state.committed_ts)],
      ['Owner', state.owner ? `${state.owner}, epoch ${state.owner_epoch}` : 'none'],
      ['Holds retention', state.hold ? 'yes: caps and age stop at its cursor' : 'no'],
      ['Created', moment(state.created_ts)],
    ];
    fill(this.state, state.at_risk ? h('p', { class: 'alert warning' }, 'Records that it has not read are evicted, or soon will be.') : null, card('State', rows));
  }

  resetForm(row) {
    const choice = h('select', { id: 'reset-kind', onchange: () => (value.hidden = !['seq', 'time'].includes(choice.value)) },
      [['earliest', 'the first record'], ['latest', 'behind the last record'], ['seq', 'a seq'], ['time', 'a time']].map(([name, label]) => h('option', { value: name }, label)));
    const value = h('input', { 'aria-label': 'Seq or time', hidden: true, placeholder: '1000 or 2026-01-31 14:05', autocomplete: 'off' });
    const preview = h('p', { role: 'status', class: 'preview' });
    const problem = h('p', { class: 'problem', role: 'alert' });
    const act = h('button', { type: 'button', class: 'primary', disabled: true }, 'Reset');
    const path = `/topics${at(row.topic)}/consumers${at(row.name)}/reset`;
    const target = () => {
      if (choice.value === 'seq') {
        if (!/^\d+$/.test(value.value)) throw new Error('A seq is a whole number');
        return { seq: Number(value.value) };
      }
      if (choice.value !== 'time') return choice.value;
      const time = Date.parse(value.value);
      if (Number.isNaN(time)) throw new Error('Enter a date and time, such as 2026-01-31 14:05');
      return { time_ms: time };
    };
    const attempt = async (step) => {
      say(problem, '');
      try {
        await step();
      } catch (error) {
        if (!this.signal.aborted) say(problem, error.message);
      }
    };
    const look = () => attempt(async () => {
      const answer = await ask('POST', path, { to: target(), dry_run: true }, this.signal);
      const direction = answer.cursor < answer.cursor_before ? 'would be read again' : 'would be left out';
      say(preview, answer.cursor === answer.cursor_before ? 'The cursor is there already.' : `From ${count(answer.cursor_before)} to ${count(answer.cursor)}: ${counted(answer.records, 'record')} ${direction}.`);
      act.disabled = answer.cursor === answer.cursor_before;
    });
    act.addEventListener('click', () => attempt(async () => {
      if (!(await confirmed('Reset the consumer?', preview.textContent, 'Reset'))) return;
      const answer = await ask('POST', path, { to: target() }, this.signal);
      toast(`The cursor is at ${count(answer.cursor)}`);
      act.disabled = true;
      say(preview, '');
      await this.load();
    }));
    for (const input of [choice, value]) input.addEventListener('input', () => (act.disabled = true));
    return h('form', { class: 'card form', onsubmit: (event) => (event.preventDefault(), look()) }, h('h2', {}, 'Reset'),
      h('div', { class: 'field' }, h('label', { for: 'reset-kind' }, 'Next to read'), choice, value), preview, problem,
      h('div', { class: 'buttons' }, h('button', {}, 'Preview'), act));
  }

  deleteButton(row) {
    const problem = h('p', { class: 'problem', role: 'alert' });
    const remove = async () => {
      if (!(await confirmed(`Delete ${row.name}?`, 'Its cursor is forgotten. The records stay.', 'Delete'))) return;
      try {
        await ask('DELETE', `/topics${at(row.topic)}/consumers${at(row.name)}`, undefined, this.signal);
        toast(`${row.name} is deleted`);
        this.close();
        await this.load();
      } catch (error) {
        if (!this.signal.aborted) say(problem, error.message);
      }
    };
    return h('div', { class: 'buttons' }, problem, h('button', { type: 'button', class: 'danger', onclick: remove }, 'Delete the consumer'));
  }
}

customElements.define('ev-consumers', Consumers);
