// The pages of jobs: all job queues, one queue with its jobs and their failures, schedules.

import { ApiError, ask, at, get, pages, repeat } from './api.js';
import { Part, confirmed, fill, h, icon, notice, say, toast } from './dom.js';
import { ago, count, counted, duration, moment, rate } from './format.js';
import { Rows } from './rows.js';
import { TopicList } from './topics.js';
import { tree } from './tree.js';

const QUEUES_MAX = 200;
const STATES = ['ready', 'delayed', 'leased', 'failed'];
const GROUPED_MAX = 10_000;
const CHUNK = 1000;
const REDRIVEN = 5000;
const NAMES = { $seq: 'seq', $ts: 'appended', $tag: 'tag', run_at: 'due', deadline: 'leased until' };

/** Do something that a button asked for; what goes wrong is shown. */
async function attempt(signal, step) {
  try {
    await step();
  } catch (error) {
    if (!signal.aborted) toast(error.message, 'error');
  }
}

class Jobs extends Part {
  show() {
    this.queues = [];
    this.counts = new Map();
    this.oldest = new Map();
    this.flows = new Map();
    this.status = h('span', { class: 'faint', role: 'status' });
    this.problem = h('div');
    const of = (row, name) => this.counts.get(row.topic)?.[name] ?? 0;
    this.rows = new Rows().setup({
      label: 'Job queues', open: ({ topic }) => (location.hash = `#/jobs/${encodeURIComponent(topic)}`),
      empty: notice('empty', 'No job queues', 'A job queue is a topic of type queue.', h('code', {}, 'everlog topic create mails --type queue')),
      columns: [
        { label: 'Job queue', width: 'minmax(130px, 1fr)', narrow: 'minmax(0, 1fr)', class: 'mono', cell: (row) => h('a', { href: `#/jobs/${encodeURIComponent(row.topic)}`, tabindex: -1 }, row.topic) },
        { label: 'Ready', width: '76px', narrow: '56px', align: 'end', cell: (row) => count(of(row, 'ready')) },
        { label: 'Oldest', width: '92px', align: 'end', wide: true, cell: (row) => this.oldest.get(row.topic) ?? '' },
        { label: 'Leased', width: '76px', narrow: '56px', align: 'end', cell: (row) => count(of(row, 'leased')) },
        { label: 'Delayed', width: '76px', align: 'end', wide: true, cell: (row) => count(of(row, 'delayed')) },
        { label: 'Failed', width: '76px', narrow: '56px', align: 'end', cell: (row) => (of(row, 'failed') ? h('span', { class: 'badge bad' }, count(of(row, 'failed'))) : '0') },
        { label: 'Done', width: '92px', align: 'end', wide: true, cell: (row) => count(of(row, 'done_total')) },
        { label: 'Done / s', width: '72px', align: 'end', wide: true, cell: (row) => rate(this.flows.get(row.topic)?.perSecond ?? 0) },
        { label: 'Dead letters', width: '96px', align: 'end', wide: true, cell: (row) => count(of(row, 'dead_lettered')) },
      ],
    });
    this.schedules = h('div', { class: 'schedules' });
    fill(this, h('div', { class: 'page-head' }, h('div', { class: 'title' }, h('h1', {}, 'Jobs'), this.status)), this.problem, this.rows, this.schedules);
    repeat(() => this.load(), 3000, this.signal, (error) => fill(this.problem, notice('error', 'The job queues cannot be listed', error.message)));
    repeat(() => this.loadSchedules(), 5000, this.signal, (error) => {
      this.schedulesShown = '';
      fill(this.schedules, notice('error', 'The schedules cannot be listed', error.message));
    });
  }

  async load() {
    // Queues are found by looking through the topics, so this ends where all of them are known.
    if (!this.searched || Date.now() - this.searched > 30_000) {
      const { queue_topics: wanted } = await get('/metrics', this.signal);
      const list = new TopicList('', this.signal);
      let found = [];
      await list.load(wanted ? 1 : 0, () => {}, 1000);
      do {
        found = list.entries.filter(({ type }) => type === 'queue');
        if (found.length >= Math.min(wanted, QUEUES_MAX) || list.isWhole) break;
        await list.load(list.entries.length + 1, () => {}, 1000);
      } while (!this.signal.aborted);
      this.queues = found.slice(0, QUEUES_MAX);
      this.searched = Date.now();
      say(this.status, `${count(wanted)}${wanted > this.queues.length ? `, the first ${count(this.queues.length)}` : ''}`);
    }
    for (const { topic } of this.queues) {
      if (this.signal.aborted) return;
      try {
        const answer = await get(`/topics${at(topic)}/jobs?state=ready&limit=1`, this.signal);
        this.counts.set(topic, answer.counts);
        this.oldest.set(topic, oldest(answer));
        this.flows.set(topic, flow(this.flows.get(topic), answer.counts.done_total));
      } catch (error) {
        if (!(error instanceof ApiError && error.status === 404)) throw error;
        this.searched = 0;
      }
    }
    fill(this.problem);
    this.rows.set(this.queues);
  }

  async loadSchedules() {
    const found = await pages('/schedules', 'schedules', this.signal, 1000);
    const text = JSON.stringify(found);
    if (text === this.schedulesShown) return;
    this.schedulesShown = text;
    fill(this.schedules, found.length === 0 ? [] : [h('h2', {}, `Schedules (${count(found.length)})`), h('div', { class: 'table-wrap', tabindex: 0, role: 'region', 'aria-label': 'Schedules' }, h('table', { 'aria-label': 'Schedules' },
      h('thead', {}, h('tr', {}, ['Schedule', 'Topic', 'Cron', 'Next', 'Last', 'Fired', ''].map((label) => h('th', { scope: 'col' }, label)))),
      h('tbody', {}, found.map((each) => h('tr', {}, h('td', { class: 'mono' }, each.name), h('td', { class: 'mono' }, each.topic), h('td', { class: 'mono' }, `${each.cron} ${each.timezone ?? ''}`),
        h('td', {}, each.paused ? h('span', { class: 'badge warn' }, each.paused_reason ? `paused: ${each.paused_reason}` : 'paused') : moment(each.next_ts)), h('td', {}, ago(each.last_ts)), h('td', {}, count(each.fired_total ?? 0)),
        h('td', {}, h('button', { type: 'button', onclick: () => attempt(this.signal, () => this.toggle(each)) }, each.paused ? 'Resume' : 'Pause')))))))]);
  }

  async toggle(schedule) {
    const { name, topic, cron, timezone, record, catch_up: catchUp } = schedule;
    await ask('PUT', `/schedules${at(name)}`, { topic, cron, timezone, record, catch_up: catchUp, paused: !schedule.paused }, this.signal);
    toast(`${name} is ${schedule.paused ? 'resumed' : 'paused'}`);
    await this.loadSchedules();
  }
}

/** How long the first of the jobs that are ready has waited since it was due, of a page that begins with it. */
function oldest({ jobs: [job], counts }) {
  return job && counts.ready ? duration(Date.now() - Math.max(job.$ts, job.run_at ?? 0)) : '';
}

/** A total with its rate since the last look. */
function flow(before, total) {
  const now = performance.now();
  return { total, now, perSecond: before ? Math.max(0, ((total - before.total) * 1000) / (now - before.now)) : 0 };
}

class JobQueue extends Part {
  show() {
    [this.topic] = this.place;
    Object.assign(this, { state: '', jobs: [], selected: new Set(), flows: {} });
    this.tiles = h('dl', { class: 'tiles' });
    this.problem = h('div');
    this.pauseButton = h('button', { type: 'button', onclick: () => attempt(this.signal, () => this.setPaused(!this.isPaused)) }, 'Pause');
    this.filters = h('div', { class: 'choice', role: 'group', 'aria-label': 'State' }, ['all', ...STATES, 'errors'].map((name) => h('button', { type: 'button', 'aria-pressed': String(name === 'all'), onclick: () => this.choose(name) }, name)));
    this.tag = h('input', { type: 'search', 'aria-label': 'Tag', placeholder: 'Tag', onchange: () => this.again() });
    this.actions = h('div', { class: 'toolbar bulk', hidden: true });
    this.progress = h('div', { class: 'progress', role: 'status', hidden: true });
    this.rows = new Rows().setup({
      label: 'Jobs', open: (row) => this.open(row), mark: (row) => this.mark(row, !this.selected.has(row.$seq)), need: (index) => this.more(index),
      empty: notice('empty', 'No jobs here', 'Jobs that are done are gone; they are counted above.'),
      columns: [
        { label: '', width: '20px', cell: (row) => this.box(row) },
        { label: 'Seq', width: 'var(--seq)', align: 'end', class: 'mono', cell: (row) => count(row.$seq) },
        { label: 'State', width: '78px', cell: (row) => h('span', { class: `badge ${{ failed: 'bad', leased: 'good', delayed: 'warn' }[row.state] ?? ''}` }, row.state) },
        { label: 'Deliveries', width: '76px', align: 'end', wide: true, cell: (row) => count(row.deliveries ?? 0) },
        { label: 'Priority', width: '64px', align: 'end', wide: true, cell: (row) => count(row.priority ?? 0) },
        { label: 'Due', width: '148px', wide: true, cell: (row) => (row.run_at && row.run_at > Date.now() ? moment(row.run_at) : row.deadline ? `lease to ${moment(row.deadline).slice(11)}` : 'now') },
        { label: 'Last error', width: 'minmax(80px, 1fr)', class: 'mono', cell: (row) => (row.last_error ? `${row.last_error.type ?? ''}: ${row.last_error.message ?? ''}` : '') },
      ],
    });
    this.errors = h('div', { class: 'stack', hidden: true });
    this.detail = h('aside', { class: 'detail', 'aria-label': 'Job', hidden: true });
    this.split = h('div', { class: 'split' }, this.rows, this.detail);
    this.redriveButton = h('button', { type: 'button', onclick: () => attempt(this.signal, () => this.redrive()) }, 'Redrive dead letters');
    fill(this, h('div', { class: 'page-head' }, h('div', { class: 'title' }, h('a', { href: '#/jobs', class: 'back', 'aria-label': 'All job queues' }, icon('back')), h('h1', { class: 'mono' }, this.topic)), h('div', { class: 'buttons' }, h('a', { class: 'button', href: `#/topics/${encodeURIComponent(this.topic)}` }, 'Records and settings'), this.redriveButton, this.pauseButton)),
      this.problem, this.tiles, h('div', { class: 'toolbar' }, this.filters, this.tag), this.actions, this.progress, this.split, this.errors);
    repeat(() => this.refresh(), 2000, this.signal, (error) => this.failed(error));
  }

  failed(error) {
    fill(this.problem, notice('error', 'The jobs cannot be shown', error.message));
  }

  query(more = '') {
    const state = STATES.includes(this.state) ? `&state=${this.state}` : '';
    const tag = this.tag.value ? `&tag=${encodeURIComponent(this.tag.value)}` : '';
    return `/topics${at(this.topic)}/jobs?limit=200${state}${tag}${more}`;
  }

  async refresh() {
    const asked = this.query();
    const paths = [asked, `/topics${at(this.topic)}/jobs?state=ready&limit=1`, `/topics${at(this.topic)}?touch=false`];
    const [answer, first, topic] = await Promise.all(paths.map((path) => get(path, this.signal)));
    fill(this.problem);
    this.isPaused = Boolean(topic.config.paused);
    this.deadLetter = topic.config.dead_letter;
    this.showCounts(answer.counts, oldest(first));
    this.redriveButton.hidden = !this.deadLetter;
    say(this.pauseButton, this.isPaused ? 'Resume' : 'Pause');
    // Another view may have been chosen meanwhile: its actions are not for the jobs of this one.
    if (this.state === 'errors' || asked !== this.query()) return;
    // What was loaded beyond the first page stays until the list is asked for anew.
    if (this.jobs.length <= 200) {
      this.jobs = answer.jobs;
      this.cursor = answer.next_cursor;
      this.draw();
    }
  }

  again() {
    Object.assign(this, { jobs: [], cursor: undefined, selected: new Set() });
    this.draw();
    attempt(this.signal, () => (this.state === 'errors' ? this.group() : this.refresh()));
  }

  choose(name) {
    for (const each of this.filters.children) each.setAttribute('aria-pressed', String(each.innerText === name));
    this.state = name === 'all' ? '' : name;
    this.split.hidden = name === 'errors';
    this.errors.hidden = name !== 'errors';
    this.again();
  }

  more(index) {
    if (!this.cursor || this.loading || index < this.jobs.length - 10) return;
    this.loading = true;
    const asked = this.query();
    get(this.query(`&cursor=${encodeURIComponent(this.cursor)}`), this.signal).then((answer) => {
      if (asked !== this.query()) return;
      this.jobs.push(...answer.jobs);
      this.cursor = answer.next_cursor;
      this.draw();
    }).catch(() => {}).finally(() => (this.loading = false));
  }

  draw() {
    this.rows.set(this.jobs);
    this.showActions();
  }

  showCounts(counts, waited) {
    for (const name of ['done_total', 'failed_total']) this.flows[name] = flow(this.flows[name], counts[name]);
    const perSecond = (name) => `${rate(this.flows[name].perSecond)}/s`;
    // The counts are those of all tags.
    this.total = this.tag.value ? undefined : this.state && STATES.includes(this.state) ? counts[this.state] : STATES.reduce((sum, name) => sum + (counts[name] ?? 0), 0);
    const tiles = [['Ready', count(counts.ready), waited && `oldest ${waited}`], ['Leased', count(counts.leased), ''], ['Delayed', count(counts.delayed), ''], ['Failed', count(counts.failed), perSecond('failed_total')], ['Done', count(counts.done_total), perSecond('done_total')], ['Dead letters', count(counts.dead_lettered), this.deadLetter ?? '']];
    fill(this.tiles, tiles.map(([name, value, more]) => h('div', {}, h('dt', {}, name), h('dd', {}, value), h('dd', { class: 'faint' }, more))));
  }

  /** Of a job in the list; the keyboard selects with Space on the row, so that Tab need not pass every box. */
  box(row) {
    return h('input', {
      type: 'checkbox', tabindex: -1, 'aria-label': `Select job ${row.$seq}`, checked: this.selected.has(row.$seq),
      onclick: (event) => event.stopPropagation(),
      onchange: (event) => this.mark(row, event.target.checked),
    });
  }

  mark(row, isSelected) {
    if (isSelected) this.selected.add(row.$seq);
    else this.selected.delete(row.$seq);
    this.showActions();
  }

  /** How many jobs the view has; for a tag only those that are loaded are known. */
  viewed() {
    return this.total === undefined && this.cursor ? `${count(this.jobs.length)} or more jobs` : counted(this.total ?? this.jobs.length, 'job');
  }

  showActions() {
    this.actions.hidden = this.jobs.length === 0;
    const some = this.selected.size;
    const bulk = (label, path, member, kind) => h('button', { type: 'button', class: kind, onclick: () => attempt(this.signal, () => this.bulk(label, path, member)) }, some ? `${label} ${count(some)}` : `${label} all in this view`);
    fill(this.actions, h('span', { class: 'faint' }, some ? `${counted(some, 'job')} selected` : `${this.viewed()} in this view`),
      bulk('Retry', 'retry', 'retried', ''), bulk('Cancel', 'cancel', 'cancelled', 'danger'), some ? h('button', { type: 'button', onclick: () => this.again() }, 'Select none') : null);
  }

  /** The seqs of the view, page by page. */
  async *seqs() {
    if (this.selected.size) {
      yield [...this.selected];
      return;
    }
    let cursor;
    do {
      const answer = await get(this.query(`&limit=${CHUNK}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ''}`).replace('limit=200&', ''), this.signal);
      yield answer.jobs.map(({ $seq }) => $seq);
      cursor = answer.next_cursor;
    } while (cursor);
  }

  async bulk(label, path, member) {
    const some = this.selected.size;
    const total = some || (this.total ?? 0);
    if (!(await confirmed(`${label} ${some ? counted(some, 'job') : this.viewed()}?`, path === 'cancel' ? 'They are deleted; leased ones when their lease ends.' : 'Delayed and failed ones are due at once.', label))) return;
    let done = 0;
    let looked = 0;
    await this.inSteps(label, async (job) => {
      for await (const seqs of this.seqs()) {
        for (let from = 0; from < seqs.length && !job.isStopped; from += CHUNK) {
          const part = seqs.slice(from, from + CHUNK);
          const answer = await ask('POST', `/topics${at(this.topic)}/jobs/${path}`, { seqs: part }, this.signal);
          done += answer[member];
          looked += part.length;
          job.show(looked, Math.max(total, looked));
        }
        if (job.isStopped) break;
      }
    }, () => `${counted(done, 'job')} ${member}`);
    this.again();
  }

  /** Work with a bar and a button to stop. What was done is said at its end, and if it fails on the way. */
  async inSteps(label, work, said) {
    const bar = h('progress', { max: 1, value: 0, 'aria-label': label });
    const text = h('span', {}, `${label}: 0`);
    const job = {
      isStopped: false,
      show: (done, total) => {
        bar.max = total || 1;
        bar.value = done;
        say(text, `${label}: ${count(done)} of ${count(total)}`);
      },
    };
    fill(this.progress, text, bar, h('button', { type: 'button', onclick: () => (job.isStopped = true) }, 'Stop'));
    this.progress.hidden = false;
    try {
      await work(job);
      toast(`${said()}${job.isStopped ? ', then stopped' : ''}`);
    } catch (error) {
      throw new Error(`${said()}, then: ${error.message}`);
    } finally {
      this.progress.hidden = true;
    }
  }

  async redrive() {
    const target = this.deadLetter;
    // Several job queues may share a dead-letter topic: only those of this one are moved.
    const redrive = (body) => ask('POST', `/topics${at(target)}/redrive`, { to: this.topic, filter: ['meta.$dead_letter_from', 'Eq', this.topic], ...body }, this.signal);
    const { moved: total } = await redrive({ dry_run: true });
    if (!total) {
      toast(`There are no dead letters of ${this.topic}`);
      return;
    }
    if (!(await confirmed(`Move ${counted(total, 'job')} back?`, `From ${target} to ${this.topic}. Each is moved once.`, 'Redrive'))) return;
    let done = 0;
    await this.inSteps('Redrive', async (job) => {
      for (;;) {
        const answer = await redrive({ limit: REDRIVEN });
        done += answer.moved;
        job.show(done, Math.max(total, done));
        if (job.isStopped || answer.moved === 0) break;
      }
    }, () => `${counted(done, 'job')} moved back`);
    await this.refresh();
  }

  async setPaused(isPaused) {
    await ask('POST', `/topics${at(this.topic)}/${isPaused ? 'pause' : 'resume'}`, {}, this.signal);
    toast(isPaused ? 'Workers get no jobs from now on' : 'Workers get jobs again');
    await this.refresh();
  }

  /** Failures by their error, the most frequent first. */
  async group() {
    fill(this.errors, h('p', { class: 'faint' }, 'Grouping the failures'));
    const groups = new Map();
    let cursor;
    let seen = 0;
    do {
      const answer = await get(`/topics${at(this.topic)}/jobs?state=failed&limit=${CHUNK}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ''}`, this.signal);
      for (const job of answer.jobs) {
        const type = job.last_error?.type ?? 'expired';
        const key = JSON.stringify([type, job.last_error?.message ?? 'the lease ended without an answer']);
        const seqs = groups.get(key) ?? [];
        seqs.push(job.$seq);
        groups.set(key, seqs);
      }
      seen += answer.jobs.length;
      cursor = answer.next_cursor;
    } while (cursor && seen < GROUPED_MAX);
    const rows = [...groups].sort(([, a], [, b]) => b.length - a.length);
    fill(this.errors, rows.length === 0 ? notice('empty', 'No failures', 'No job waits again after an error.') : h('div', { class: 'table-wrap' }, h('table', {},
      h('caption', {}, `${counted(seen, 'failed job')}${cursor ? ', the first ones' : ''} by error`),
      h('thead', {}, h('tr', {}, ['Error', 'Message', 'Jobs', 'Seqs', ''].map((label) => h('th', { scope: 'col' }, label)))),
      h('tbody', {}, rows.map(([key, seqs]) => {
        const [type, message] = JSON.parse(key);
        return h('tr', {}, h('td', { class: 'mono' }, type), h('td', {}, message), h('td', {}, count(seqs.length)), h('td', {}, `${count(seqs[0])} to ${count(seqs.at(-1))}`),
          h('td', {}, h('button', { type: 'button', onclick: () => this.select(seqs) }, 'Select')));
      })))));
  }

  /** Select all jobs of a group, beside the first of them. */
  async select(seqs) {
    this.choose('failed');
    this.selected = new Set(seqs);
    await this.open({ $seq: seqs[0] });
  }

  async open(row) {
    this.detail.hidden = false;
    this.classList.add('inspecting');
    const close = h('button', { type: 'button', class: 'quiet', 'aria-label': 'Close the job', onclick: () => this.closeDetail() }, icon('close'));
    fill(this.detail, h('header', {}, h('h2', {}, `Job ${count(row.$seq)}`), close), h('p', { class: 'faint' }, 'Loading'));
    await attempt(this.signal, async () => {
      const job = await get(`/topics${at(this.topic)}/jobs/${row.$seq}`, this.signal);
      const facts = Object.entries(job).filter(([name, value]) => !['attempts', 'data', 'meta', 'last_error', 'performance', 'topic'].includes(name) && value !== null && value !== undefined);
      const act = (label, path, member) => h('button', { type: 'button', onclick: () => attempt(this.signal, async () => {
        const answer = await ask('POST', `/topics${at(this.topic)}/jobs/${path}`, { seqs: [row.$seq] }, this.signal);
        toast(`${counted(answer[member], 'job')} ${member}`);
        this.closeDetail();
        this.again();
      }) }, label);
      fill(this.detail, h('header', {}, h('h2', {}, `Job ${count(row.$seq)}`), act('Retry', 'retry', 'retried'), act('Cancel', 'cancel', 'cancelled'), close),
        h('dl', { class: 'values' }, facts.map(([name, value]) => h('div', {}, h('dt', {}, NAMES[name] ?? name.replaceAll('_', ' ')), h('dd', { class: 'mono' }, /_at$|_ts$|deadline|\$ts/.test(name) ? moment(value) : typeof value === 'object' ? JSON.stringify(value) : String(value))))),
        h('h3', {}, `Attempts (${count(job.attempts?.length ?? 0)})`), (job.attempts ?? []).map(attemptCard),
        job.data === undefined ? null : [h('h3', {}, 'Data'), tree(job.data)]);
    });
  }

  closeDetail() {
    this.detail.hidden = true;
    this.classList.remove('inspecting');
    this.rows.scroller.focus();
  }
}

function attemptCard(attempted) {
  const took = attempted.ended_ts && attempted.claimed_ts ? `, ${duration(attempted.ended_ts - attempted.claimed_ts)}` : '';
  return h('section', { class: 'card attempt' }, h('p', {}, h('span', { class: `badge ${attempted.outcome === 'released' ? '' : 'bad'}` }, attempted.outcome ?? 'running'), ` delivery ${attempted.delivery} by ${attempted.node ?? 'unknown'}${took}`),
    attempted.error ? [h('p', { class: 'problem' }, `${attempted.error.type ?? ''}: ${attempted.error.message ?? ''}`), attempted.error.trace ? h('details', {}, h('summary', {}, 'Trace'), h('pre', { tabindex: 0, role: 'group', 'aria-label': 'Trace' }, attempted.error.trace)) : null] : null);
}

customElements.define('ev-jobs', Jobs);
customElements.define('ev-job-queue', JobQueue);
