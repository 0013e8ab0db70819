// The page of one topic: its records, its settings and what a change of them means, append, delete.

import { ApiError, ask, at, get, repeat } from './api.js';
import { Part, confirmed, fill, h, icon, notice, say, toast } from './dom.js';
import { ago, bytes, count, counted, duration } from './format.js';
import './records.js';

const TABS = [['records', 'Records'], ['settings', 'Settings'], ['append', 'Append'], ['delete', 'Delete']];

const CLASSES = {
  ephemeral: 'records are in memory only and gone after a restart',
  memory: 'acknowledged at once; a crash may lose the newest records',
  disk: 'acknowledged when written; a power loss may lose the newest records',
  fsync: 'acknowledged when synced; nothing acknowledged is lost',
};
const FIELDS = [
  { name: 'durability', label: 'Durability', kind: 'choice', options: Object.keys(CLASSES), help: (value) => CLASSES[value] },
  { name: 'cap_records', label: 'Records at most', kind: 'number', help: () => '0: no limit' },
  { name: 'cap_bytes', label: 'Bytes at most', kind: 'number', help: (value) => (Number(value) ? bytes(Number(value)) : '0: no limit') },
  { name: 'ttl_ms', label: 'Age at most, ms', kind: 'number', help: (value) => (Number(value) ? duration(Number(value)) : '0: no limit') },
  { name: 'discard', label: 'When full', kind: 'choice', options: ['old', 'reject'], help: (value) => (value === 'old' ? 'the oldest records go' : 'appends are refused with topic_full') },
  { name: 'priority', label: 'Priority', kind: 'number', nullable: true, help: (value) => (value === '' ? 'empty: by use' : 'from -1000 to 1000; negative ones wait under pressure') },
  { name: 'idempotency_window_ms', label: 'Idempotency window, ms', kind: 'number', help: (value) => duration(Number(value)) },
  { name: 'dedupe_node', label: 'Leave out own records', kind: 'flag', help: () => 'readers that name their node do not get what it wrote' },
];
const QUEUE_FIELDS = [
  { name: 'lease_ms', label: 'Lease, ms', kind: 'number', help: (value) => duration(Number(value)) },
  { name: 'max_deliveries', label: 'Deliveries at most', kind: 'number', help: () => '0: no limit; beyond it jobs go to the dead-letter topic' },
  { name: 'dead_letter', label: 'Dead-letter topic', kind: 'text', nullable: true, help: () => 'empty: jobs are delivered again and again' },
  { name: 'claim_jitter_ms', label: 'Claim window, ms', kind: 'number', help: () => 'claims within this time are served together' },
  { name: 'leases_durable', label: 'Leases survive a restart', kind: 'flag', help: () => '' },
];

/** What a change of the settings does to records that are there, in words; the serious ones ask for a confirmation. */
export function consequences(before, after, state) {
  const found = [];
  const tighter = (name) => after[name] && (!before[name] || after[name] < before[name]);
  if (tighter('cap_records') && state.count > after.cap_records) {
    found.push(after.discard === 'reject' ? 'The topic holds more than that: appends are refused until records are deleted.' : `The oldest ${counted(state.count - after.cap_records, 'record')} are evicted at once; readers get a gap.`);
  }
  if (tighter('cap_bytes') && state.bytes > after.cap_bytes) found.push(`The topic holds ${bytes(state.bytes)}: ${after.discard === 'reject' ? 'appends are refused' : 'the oldest records are evicted at once'}.`);
  if (tighter('ttl_ms')) found.push(`Records older than ${duration(after.ttl_ms)} expire at once.`);
  if (before.durability !== after.durability) {
    const order = Object.keys(CLASSES);
    found.push(order.indexOf(after.durability) < order.indexOf(before.durability) ? `Weaker: ${CLASSES[after.durability]}.` : `Stronger: answered when what is there is as safe as the new class says.`);
  }
  return found;
}

class Topic extends Part {
  show() {
    [this.topic] = this.place;
    this.tabs = h('div', { class: 'tabs', role: 'tablist' }, TABS.map(([name, label]) => h('a', { role: 'tab', href: `#/topics/${encodeURIComponent(this.topic)}/${name}`, 'data-tab': name }, label)));
    this.facts = h('dl', { class: 'facts' });
    this.problem = h('div');
    this.panel = h('div', { class: 'panel', role: 'tabpanel' });
    fill(this, h('div', { class: 'page-head' }, h('div', { class: 'title' }, h('a', { href: '#/topics', class: 'back', 'aria-label': 'All topics' }, icon('back')), h('h1', { class: 'mono' }, this.topic)), this.facts), this.problem, this.tabs, this.panel);
    repeat(() => this.refresh(), 2000, this.signal, (error) => this.failed(error));
    this.moved(this.place);
  }

  failed(error) {
    const gone = error instanceof ApiError && error.code === 'topic_not_found';
    fill(this.problem, notice('error', gone ? 'There is no such topic' : 'The topic cannot be shown', error.message, gone && h('a', { href: '#/topics' }, 'All topics')));
  }

  moved([, tab = 'records']) {
    if (tab === this.tab) return;
    this.tab = tab;
    for (const link of this.tabs.children) link.setAttribute('aria-selected', String(link.dataset.tab === tab));
    const makers = { records: () => this.records(), settings: () => this.settings(), append: () => this.append(), delete: () => this.remove() };
    fill(this.panel, (makers[tab] ?? makers.records)());
  }

  async refresh() {
    this.state = await get(`/topics${at(this.topic)}?touch=false`, this.signal);
    fill(this.problem);
    const { state } = this;
    const facts = [['Records', count(state.count)], ['Size', bytes(state.bytes)], ['Head', count(state.head_seq)], ['Class', state.config.durability], ['Last write', ago(state.last_write_ts)]];
    if (state.queue) facts.splice(3, 0, ['Ready', count(state.queue.ready)], ['Leased', count(state.queue.in_flight)]);
    if (this.facts.childElementCount !== facts.length) fill(this.facts, facts.map(([name]) => h('div', {}, h('dt', {}, name), h('dd', {}))));
    facts.forEach(([, value], index) => say(this.facts.children[index].children[1], value));
  }

  records() {
    const records = document.createElement('ev-records');
    records.topic = this.topic;
    return records;
  }

  /** Do something that a button asked for; what goes wrong is said beside it. */
  async attempt(problem, step) {
    say(problem, '');
    try {
      await step();
    } catch (error) {
      if (!this.signal.aborted) say(problem, error.message);
    }
  }

  // --- Settings ---

  settings() {
    const panel = h('div', {}, h('p', { class: 'faint' }, 'Loading the settings'));
    get(`/topics${at(this.topic)}?touch=false`, this.signal).then((state) => fill(panel, this.settingsForm(state)), (error) => this.signal.aborted || fill(panel, notice('error', 'No settings', error.message)));
    return panel;
  }

  settingsForm(state) {
    const { config } = state;
    const fields = config.type === 'queue' ? [...FIELDS, ...QUEUE_FIELDS] : FIELDS;
    const problem = h('p', { class: 'problem', role: 'alert' });
    const means = h('div', { class: 'means', role: 'status' });
    const save = h('button', { class: 'primary', disabled: true }, 'Save');
    const inputs = {};
    const changed = () => {
      const after = this.configOf(config, fields, inputs);
      const differs = JSON.stringify(after) !== JSON.stringify(config);
      save.disabled = !differs;
      const lines = differs ? consequences(config, after, this.state ?? state) : [];
      fill(means, lines.length ? h('ul', {}, lines.map((line) => h('li', {}, line))) : []);
      for (const field of fields) say(inputs[field.name].help, field.help(inputs[field.name].input.value));
    };
    const rows = fields.map((field) => {
      const input = control(field, config[field.name], changed);
      const help = h('span', { class: 'faint' });
      inputs[field.name] = { input, help };
      return h('div', { class: 'field' }, h('label', { for: `field-${field.name}` }, field.label), input, help);
    });
    const form = h('form', {
      class: 'card form',
      onsubmit: (event) => {
        event.preventDefault();
        this.attempt(problem, () => this.save(config, this.configOf(config, fields, inputs), state));
      },
    }, h('div', { class: 'fields' }, rows), means, problem, h('div', { class: 'buttons' }, h('button', { type: 'button', onclick: () => fill(this.panel, this.settings()) }, 'Undo'), save));
    changed();
    return form;
  }

  configOf(config, fields, inputs) {
    const after = { ...config };
    for (const field of fields) {
      const { input } = inputs[field.name];
      if (field.kind === 'flag') after[field.name] = input.checked;
      else if (field.nullable && input.value === '') after[field.name] = null;
      else after[field.name] = field.kind === 'number' ? Number(input.value) : input.value;
    }
    after.durable = after.durability === 'fsync';
    return after;
  }

  async save(before, after, state) {
    const lines = consequences(before, after, this.state ?? state);
    if (lines.length && !(await confirmed('Change the settings?', lines.join(' '), 'Change'))) return;
    await ask('PUT', `/topics${at(this.topic)}`, after, this.signal);
    toast('The settings are changed');
    fill(this.panel, this.settings());
  }

  // --- Append ---

  append() {
    const data = h('textarea', { id: 'append-data', rows: 8, spellcheck: 'false', value: '{}' });
    const tag = h('input', { id: 'append-tag', autocomplete: 'off', spellcheck: 'false' });
    const node = h('input', { id: 'append-node', autocomplete: 'off', spellcheck: 'false' });
    const meta = h('input', { id: 'append-meta', autocomplete: 'off', spellcheck: 'false', placeholder: '{"source": "console"}' });
    const problem = h('p', { class: 'problem', role: 'alert' });
    const parsed = (name, text) => {
      try {
        JSON.parse(text);
        return text;
      } catch (error) {
        throw new Error(`${name} is not JSON: ${error.message}`);
      }
    };
    const send = async () => {
      const members = [`"data":${parsed('Data', data.value)}`];
      if (tag.value) members.push(`"tag":${JSON.stringify(tag.value)}`);
      if (node.value) members.push(`"node":${JSON.stringify(node.value)}`);
      if (meta.value) members.push(`"meta":${parsed('Meta', meta.value)}`);
      // As it was typed: a number keeps all of its digits.
      const answer = await ask('POST', `/topics${at(this.topic)}`, JSON.rawJSON ? { records: [rawObject(members)] } : JSON.parse(`{"records":[{${members.join(',')}}]}`), this.signal);
      toast(`Appended as seq ${count(answer.first_seq)}`);
    };
    return h('form', { class: 'card form', onsubmit: (event) => (event.preventDefault(), this.attempt(problem, send)) },
      h('div', { class: 'field tall' }, h('label', { for: 'append-data' }, 'Data, any JSON'), data),
      h('div', { class: 'fields' },
        h('div', { class: 'field' }, h('label', { for: 'append-tag' }, 'Tag'), tag),
        h('div', { class: 'field' }, h('label', { for: 'append-node' }, 'Node'), node),
        h('div', { class: 'field' }, h('label', { for: 'append-meta' }, 'Meta, a JSON object'), meta)),
      problem, h('div', { class: 'buttons' }, h('button', { class: 'primary' }, 'Append')));
  }

  // --- Delete ---

  remove() {
    const match = h('input', { id: 'delete-tag', autocomplete: 'off', spellcheck: 'false', placeholder: 'eu or eu*' });
    const before = h('input', { id: 'delete-before', inputmode: 'numeric', autocomplete: 'off', placeholder: 'seq' });
    const preview = h('p', { role: 'status', class: 'preview' }, 'Say which records; nothing is deleted before you have seen how many.');
    const problem = h('p', { class: 'problem', role: 'alert' });
    const act = h('button', { type: 'button', class: 'danger', disabled: true }, 'Delete');
    const wanted = () => {
      const body = {};
      if (match.value) body.match = match.value;
      if (before.value) {
        if (!/^\d+$/.test(before.value)) throw new Error('A seq is a whole number');
        body.before_seq = Number(before.value);
      }
      if (!('match' in body) && !('before_seq' in body)) throw new Error('Enter a tag, a seq, or both');
      return body;
    };
    const look = async () => {
      act.disabled = true;
      const { deleted } = await ask('POST', `/topics${at(this.topic)}/delete`, { ...wanted(), dry_run: true }, this.signal);
      say(preview, deleted ? `${counted(deleted, 'record')} would be deleted, for good and for all readers.` : 'No record matches.');
      act.disabled = !deleted;
      say(act, deleted ? `Delete ${counted(deleted, 'record')}` : 'Delete');
    };
    act.addEventListener('click', () => this.attempt(problem, async () => {
      if (!(await confirmed('Delete records?', `${act.textContent} of ${this.topic}. This cannot be undone.`, 'Delete'))) return;
      const { deleted } = await ask('POST', `/topics${at(this.topic)}/delete`, wanted(), this.signal);
      toast(`${counted(deleted, 'record')} deleted`);
      act.disabled = true;
      say(preview, '');
    }));
    for (const input of [match, before]) input.addEventListener('input', () => (act.disabled = true));
    const topicProblem = h('p', { class: 'problem', role: 'alert' });
    const form = h('form', { class: 'card form', onsubmit: (event) => (event.preventDefault(), this.attempt(problem, look)) },
      h('h2', {}, 'Delete records'),
      h('div', { class: 'fields' },
        h('div', { class: 'field' }, h('label', { for: 'delete-tag' }, 'With this tag'), match, h('span', { class: 'faint' }, 'a * at the end stands for anything')),
        h('div', { class: 'field' }, h('label', { for: 'delete-before' }, 'Below this seq'), before, h('span', { class: 'faint' }, 'with both, both must hold'))),
      preview, problem, h('div', { class: 'buttons' }, h('button', {}, 'Preview'), act));
    const whole = h('section', { class: 'card form' }, h('h2', {}, 'Delete the topic'), h('p', { class: 'faint' }, 'With its records, its consumers, and every router that begins or ends here.'), topicProblem,
      h('div', { class: 'buttons' }, h('button', { type: 'button', class: 'danger', onclick: () => this.attempt(topicProblem, () => this.removeTopic()) }, 'Delete the topic')));
    return h('div', { class: 'stack' }, form, whole);
  }

  async removeTopic() {
    const held = this.state ? ` It has ${counted(this.state.count, 'record')}.` : '';
    if (!(await confirmed(`Delete ${this.topic}?`, `${held} This cannot be undone.`, 'Delete the topic'))) return;
    await ask('DELETE', `/topics${at(this.topic)}`, undefined, this.signal);
    toast(`${this.topic} is deleted`);
    location.hash = '#/topics';
  }
}

/** An object of JSON texts, sent as they are. */
function rawObject(members) {
  return Object.fromEntries(members.map((member) => {
    const colon = member.indexOf(':');
    return [JSON.parse(member.slice(0, colon)), rawValue(member.slice(colon + 1))];
  }));
}

function rawValue(text) {
  return JSON.parse(text, (_, value, context) => (typeof value === 'number' && context?.source ? JSON.rawJSON(context.source) : value));
}

function control(field, value, changed) {
  const attributes = { id: `field-${field.name}`, oninput: changed };
  if (field.kind === 'choice') {
    const select = h('select', attributes, field.options.map((option) => h('option', { value: option, selected: option === value }, option)));
    return select;
  }
  if (field.kind === 'flag') return h('input', { ...attributes, type: 'checkbox', checked: Boolean(value) });
  return h('input', { ...attributes, inputmode: field.kind === 'number' ? 'numeric' : null, autocomplete: 'off', spellcheck: 'false', value: value ?? '' });
}

customElements.define('ev-topic', Topic);
