// The page Pipeline: the tables of a lake, how far archives are, and what the last audits found.

import { get, repeat } from './api.js';
import { card } from './overview.js';
import { Part, fill, h, icon, notice, say } from './dom.js';
import { ago, bytes, count, counted, duration, moment } from './format.js';
import { Rows } from './rows.js';

const SILENT_MS = 600_000;
const FAULTS = ['duplicate', 'overlapping', 'missing', 'altered'];

/** Whether an archive runs, in words; one that was killed cannot say so. */
function archiveState(archive) {
  if (!archive) return ['', 'no report'];
  if (!archive.is_running) return ['good', 'ended'];
  return Date.now() - archive.updated_ms > SILENT_MS ? ['warn', 'silent'] : ['good', 'running'];
}

function auditState(audit) {
  if (!audit) return ['', 'never'];
  return audit.is_sound ? ['good', 'sound'] : ['bad', 'faults'];
}

const badge = ([kind, text]) => h('span', { class: `badge ${kind}` }, text);

class Pipeline extends Part {
  show() {
    this.status = h('span', { class: 'faint mono', role: 'status' });
    this.problem = h('div');
    this.rows = new Rows().setup({
      label: 'Tables', open: (row) => this.open(row.table),
      empty: notice('empty', 'No tables', 'The lake has no table yet.', h('code', {}, "everlog pipeline archive --url URL --topic 'orders*' --lake ./lake")),
      columns: [
        { label: 'Table', width: 'minmax(110px, 1fr)', narrow: 'minmax(0, 1fr)', class: 'mono', cell: (row) => row.table },
        { label: 'On disk', width: '84px', narrow: '72px', align: 'end', cell: (row) => `${row.is_counted ? '' : 'over '}${bytes(row.bytes_on_disk)}` },
        { label: 'Files', width: '72px', align: 'end', wide: true, cell: (row) => count(row.files) },
        { label: 'Version', width: '72px', align: 'end', wide: true, cell: (row) => count(row.version) },
        { label: 'Archive', width: '84px', narrow: '76px', cell: (row) => badge(archiveState(row.archive)) },
        { label: 'Last commit', width: '120px', wide: true, cell: (row) => (row.archive ? ago(row.archive.updated_ms) : '') },
        { label: 'Audit', width: '76px', cell: (row) => badge(auditState(row.audit)) },
      ],
    });
    this.detail = h('aside', { class: 'detail', 'aria-label': 'Table', hidden: true });
    fill(this, h('div', { class: 'page-head' }, h('div', { class: 'title' }, h('h1', {}, 'Pipeline'), this.status)), this.problem, h('div', { class: 'split' }, this.rows, this.detail));
    repeat(() => this.load(), 5000, this.signal, (error) => fill(this.problem, notice('error', 'The lake cannot be shown', error.message)));
  }

  async load() {
    const { root, tables } = await get('/lake', this.signal);
    this.rows.hidden = root === null;
    if (root === null) {
      fill(this.problem, notice('empty', 'This server shows no lake', 'Start it with the directory of one.', h('code', {}, 'everlog serve --lake ./lake')));
      return;
    }
    fill(this.problem);
    say(this.status, root);
    this.tables = tables;
    this.rows.set(tables);
    if (this.opened) this.open(this.opened);
  }

  open(name) {
    const row = this.tables.find(({ table }) => table === name);
    if (!row) {
      this.close();
      return;
    }
    this.opened = name;
    this.detail.hidden = false;
    this.classList.add('inspecting');
    const text = JSON.stringify([row, archiveState(row.archive)]);
    if (text === this.shown) return;
    this.shown = text;
    fill(this.detail, h('header', {}, h('h2', { class: 'mono' }, name), h('button', { type: 'button', class: 'quiet', 'aria-label': 'Close the table', onclick: () => this.close() }, icon('close'))),
      this.archive(row.archive), this.audit(row.audit));
  }

  close() {
    this.opened = null;
    this.shown = null;
    this.detail.hidden = true;
    this.classList.remove('inspecting');
    this.rows.scroller.focus();
  }

  archive(archive) {
    if (!archive) return card('Archive', [['No report', 'no archive has run into this table']]);
    return card('Archive', [
      ['State', badge(archiveState(archive))],
      ['Source', archive.source],
      ['Last commit', moment(archive.updated_ms)],
      ['Committed in this run', `${counted(archive.rows, 'row')} in ${counted(archive.commits, 'commit')}`],
      ['Rate', archive.seconds > 0 ? `${count(Math.round(archive.rows / archive.seconds))} rows/s over ${duration(archive.seconds * 1000)}` : 'unknown'],
    ]);
  }

  audit(audit) {
    if (!audit) return card('Audit', [['Never', h('code', {}, 'everlog pipeline audit --lake ./lake')]]);
    const words = audit.is_sound ? 'every seq is accounted for' : 'not every seq is accounted for';
    const rows = [['Verdict', badge(auditState(audit))], ['Means', words], ['When', moment(audit.updated_ms)]];
    if (audit.unreadable.length) rows.push(['Unreadable', audit.unreadable.join(', ')]);
    const shown = audit.stream_count > audit.streams.length ? `${counted(audit.stream_count, 'stream')}; ${audit.streams.length} are shown` : counted(audit.stream_count, 'stream');
    rows.push(['Streams', shown]);
    const heads = ['Stream', 'Seqs', 'Delivered', 'Gap', 'Deleted', 'Faults', 'Behind'];
    return h('div', {}, card('Audit', rows), h('div', { class: 'table-wrap', tabindex: 0, role: 'region', 'aria-label': 'Streams of the audit' }, h('table', { 'aria-label': 'Streams of the audit' },
      h('thead', {}, h('tr', {}, heads.map((head) => h('th', { scope: 'col' }, head)))),
      h('tbody', {}, audit.streams.map((stream) => h('tr', {}, h('td', { class: 'mono' }, stream.name), h('td', {}, `${count(stream.first_seq)} to ${count(stream.last_seq)}`), h('td', {}, count(stream.delivered)), h('td', {}, count(stream.gap)), h('td', {}, count(stream.deleted)), h('td', {}, this.faults(stream)), h('td', {}, count(stream.behind))))))));
  }

  faults(stream) {
    const found = FAULTS.filter((name) => stream[name] > 0).map((name) => `${count(stream[name])} ${name}`);
    return found.length ? h('span', { class: 'badge bad' }, found.join(', ')) : 'none';
  }
}

customElements.define('ev-pipeline', Pipeline);
