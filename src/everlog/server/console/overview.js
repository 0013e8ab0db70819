// The page Overview: rates and latencies of the last hour, pressure, storage, the last recovery, alerts.

import { Chart } from './chart.js';
import { connection, get, repeat } from './api.js';
import { Part, fill, h, notice, say } from './dom.js';
import { bytes, compact, count, counted, duration, milliseconds, rate } from './format.js';

const RANGES = { '5 min': { step: 1000, span: 300_000 }, '1 hour': { step: 10_000, span: 3_600_000 } };
const RUNGS = [
  ['coalesce', 'Coalesce', 'watchers get several writes at once'],
  ['commit', 'Share syncs', 'more writers wait for one sync'],
  ['defer', 'Defer', 'routers and topics of negative priority wait'],
  ['refuse', 'Refuse', 'writes are refused while the log is behind'],
];
const percent = (value) => `${Math.round(value * 100)} %`;

const CHARTS = [
  { title: 'Records appended / s', format: rate, max: 10, series: [{ name: 'records_per_s', label: 'records/s', color: 'series-1' }] },
  { title: 'Log written / s', format: bytes, max: 1000, series: [{ name: 'log_bytes_per_s', label: 'bytes/s', color: 'series-2' }] },
  {
    title: 'Request to answer', format: milliseconds, max: 1,
    series: [{ name: 'request_p99_ms', label: 'p99', color: 'series-3' }, { name: 'request_p50_ms', label: 'p50', color: 'series-1' }],
  },
  {
    title: 'Sync latency', format: milliseconds, max: 1,
    series: [{ name: 'sync_p99_ms', label: 'p99', color: 'series-3' }, { name: 'sync_p50_ms', label: 'p50', color: 'series-1' }],
  },
  {
    title: 'Commit to delivery', format: milliseconds, max: 1,
    series: [{ name: 'delivery_p99_ms', label: 'p99', color: 'series-3' }, { name: 'delivery_p50_ms', label: 'p50', color: 'series-1' }],
  },
  {
    title: 'Pressure', format: percent, max: 1,
    series: [{ name: 'pressure', label: 'pressure', color: 'series-3' }, { name: 'busy', label: 'loop busy', color: 'series-2' }],
  },
  {
    title: 'Event loop late', format: milliseconds, max: 1, series: [{ name: 'loop_late_ms', label: 'late by', color: 'series-2' }],
  },
  {
    title: 'Requests and deliveries / s', format: rate, max: 10,
    series: [{ name: 'requests_per_s', label: 'requests', color: 'series-1' }, { name: 'deliveries_per_s', label: 'deliveries', color: 'series-2' }],
  },
];

// Where more is said about an alert.
const MORE = { consumers_at_risk: ['consumers', 'Show the consumers'], routers_paused: ['routers', 'Show the routers'] };

class Overview extends Part {
  show() {
    this.range = '5 min';
    this.samples = { fields: [], rows: [] };
    this.alerts = h('div', { class: 'alerts' });
    this.tiles = h('dl', { class: 'tiles' });
    this.charts = CHARTS.map((options) => new Chart().setup(options));
    this.cards = h('div', { class: 'cards' });
    this.problem = h('div');
    const choose = h('div', { class: 'choice', role: 'group', 'aria-label': 'Time range' }, Object.keys(RANGES).map((name) => h('button', {
      type: 'button', 'aria-pressed': String(name === this.range), onclick: (event) => this.choose(name, event.target),
    }, name)));
    fill(this, h('div', { class: 'page-head' }, h('h1', {}, 'Overview'), choose), this.problem, this.alerts, this.tiles,
      h('div', { class: 'charts' }, this.charts), this.cards);
    repeat(() => this.load(), 1000, this.signal, (error) => fill(this.problem, notice('error', 'The overview cannot be shown', error.message)));
    connection.addEventListener('change', () => this.classList.toggle('stale', connection.state !== 'online'), { signal: this.signal });
  }

  choose(name, button) {
    this.range = name;
    for (const each of button.parentElement.children) each.setAttribute('aria-pressed', String(each === button));
    this.samples = { fields: [], rows: [] };
    this.load().catch(() => {});
  }

  async load() {
    const range = this.range;
    const { step, span } = RANGES[range];
    const last = this.samples.rows.at(-1)?.[0] ?? 0;
    const [overview, samples] = await Promise.all([
      get('/overview', this.signal),
      get(`/samples?step_ms=${step}&after_ms=${last}`, this.signal),
    ]);
    if (range !== this.range) return;
    const rows = [...this.samples.rows, ...samples.rows.filter((row) => row[0] > last)];
    this.samples = { fields: samples.fields, rows: rows.slice(-400) };
    fill(this.problem);
    this.showAlerts(overview);
    this.showTiles(overview);
    this.showCards(overview);
    const now = Math.max(Date.now(), this.samples.rows.at(-1)?.[0] ?? 0);
    for (const chart of this.charts) chart.update(this.samples.fields, this.samples.rows, span, now);
  }

  latest(name) {
    const row = this.samples.rows.at(-1);
    return row ? row[this.samples.fields.indexOf(name)] : 0;
  }

  showAlerts({ alerts, has_keys: hasKeys }) {
    const shown = alerts.map((alert) => [alert.level, alert.message, MORE[alert.code]]);
    if (!hasKeys) shown.push(['note', 'No keys are set: every client that reaches this server may read and delete everything.']);
    const text = JSON.stringify(shown);
    if (text === this.alertsShown) return;
    this.alertsShown = text;
    fill(this.alerts, shown.map(([level, message, more]) => h('p', { class: `alert ${level}`, role: level === 'error' ? 'alert' : 'status' },
      h('span', { class: 'badge' }, level), h('span', {}, message), more && h('a', { href: `#/${more[0]}` }, more[1]))));
  }

  showTiles(overview) {
    const tiles = [
      ['Records / s', rate(this.latest('records_per_s')), `${compact(overview.appended_total)} since the start`],
      ['Topics', count(overview.topics), `${counted(overview.routers, 'router')}, ${counted(overview.consumers, 'consumer')}`],
      ['Live data', bytes(overview.bytes_live), overview.is_memory ? 'in memory only' : 'of all topics'],
      ['Syncs / s', rate(this.latest('syncs_per_s')), `p99 ${milliseconds(this.latest('sync_p99_ms'))}`],
      ['Streams', count(overview.sse_connections), counted(overview.watch_sessions, 'watch session')],
      ['Up', duration(overview.uptime_ms), `version ${overview.version}`],
    ];
    if (this.tiles.childElementCount !== tiles.length) {
      fill(this.tiles, tiles.map(([name]) => h('div', {}, h('dt', {}, name), h('dd', {}), h('dd', { class: 'faint' }))));
    }
    tiles.forEach(([, value, more], index) => {
      const [, shown, below] = this.tiles.children[index].children;
      say(shown, value);
      say(below, more);
    });
  }

  showCards(overview) {
    const { performance: _, uptime_ms: __, ...lasting } = overview;
    const text = JSON.stringify([lasting.pressure.rungs, lasting.pressure.throttled_total, lasting.storage, lasting.recovery, lasting.disk]);
    if (text === this.cardsShown) return;
    this.cardsShown = text;
    fill(this.cards, this.ladder(overview.pressure), this.storage(overview), this.recovery(overview.recovery));
  }

  ladder({ rungs, throttled_total: throttled }) {
    return h('section', { class: 'card' }, h('h2', {}, 'Pressure ladder'),
      h('ol', { class: 'ladder' }, RUNGS.map(([name, title, text]) => h('li', { class: rungs.includes(name) ? 'taken' : null },
        h('span', { class: 'rung' }, title), h('span', { class: 'faint' }, text), h('span', { class: 'badge' }, rungs.includes(name) ? 'taken' : 'free')))),
      h('p', { class: 'faint' }, `${counted(throttled, 'write')} refused because of pressure since the start`));
  }

  storage({ storage, disk, is_memory: isMemory }) {
    const rows = [['Status', h('span', { class: `badge ${storage.status === 'ok' ? 'good' : 'bad'}` }, storage.status)]];
    if (isMemory) rows.push(['Kept', 'in memory, gone when the server stops']);
    if (disk) rows.push(['Disk', `${bytes(disk.free_bytes)} free of ${bytes(disk.total_bytes)}`]);
    const words = (found) => Object.entries(found).map(([kind, value]) => `${kind} ${value}`).join(', ') || 'none';
    rows.push(['Failing now', words(storage.failing)], ['Errors since the start', words(storage.errors)], ['Shards closed', words(storage.closed_shards)], ['Topics damaged', count(storage.damaged_topics)], ['Routers paused', count(storage.paused_routers)]);
    return card('Storage', rows);
  }

  recovery(report) {
    if (!report) return card('Last recovery', [['Nothing to recover', 'the server keeps its data in memory']]);
    return card('Last recovery', [
      ['Topics', count(report.topics)],
      ['From segments', `${counted(report.records_from_segments, 'record')} in ${counted(report.segments, 'segment')}`],
      ['From the log', `${counted(report.records_from_log, 'record')} in ${counted(report.log_files, 'file')}`],
      ['Unfinished writes cut', bytes(report.cut_bytes)],
      ['Snapshot', report.snapshot_number ? `number ${count(report.snapshot_number)}` : 'none'],
      ['Damage', report.damage.length ? h('ul', {}, report.damage.map((line) => h('li', {}, line))) : 'none found'],
    ]);
  }
}

/** A card with named values. */
export function card(title, rows) {
  return h('section', { class: 'card' }, h('h2', {}, title), h('dl', { class: 'values' }, rows.map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value)))));
}

customElements.define('ev-overview', Overview);
