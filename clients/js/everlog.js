// Client of an everlog topics server, for browsers and for Node 18 or newer: one ES module, no dependency.
//
// Options and answers have the names of the HTTP API. Seqs are numbers: exact up to 2^53.

const LONG_POLL_MS = 25_000;
const HEARTBEAT_MS = 15_000;
// A stream without a heartbeat for so long counts as lost.
const SILENCE_MS = 2.5 * HEARTBEAT_MS;
const FIRST_PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 5_000;
// An event or an answer beyond this is not from an everlog server.
const EVENT_CHARS_MAX = 64 * 1024 * 1024;

/** A request that the server refused, or that it never answered (`status` 0, code `unreachable`). */
export class ApiFailed extends Error {
  constructor(status, code, message, detail = undefined, retryAfterMs = 0) {
    super(message);
    this.name = "ApiFailed";
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.retryAfterMs = retryAfterMs;
  }

  /** Whether the server was there but did nothing: a repeat is always safe. */
  get isBusy() {
    return this.status === 429 || this.status === 503;
  }

  /** Whether no server answered, so that it is unknown what was done. */
  get isOutage() {
    return this.status === 0 || this.status === 502 || this.status === 504;
  }
}

/** Records were gone before they were read; `gap` is the tombstone with range and reason. */
export class RecordsLost extends Error {
  constructor(gap) {
    super(
      gap.reason === "recreated"
        ? `topic ${gap.topic} ends with seq ${gap.head_seq}, before the seq to be read: it was deleted and ` +
            "created again; read it from its start"
        : `seqs ${gap.gap_from} to ${gap.gap_to} of topic ${gap.topic} are gone (${gap.reason}); ` +
            `continue with start: ${gap.gap_to + 1}, or read with gaps: "yield"`,
    );
    this.name = "RecordsLost";
    this.gap = gap;
  }
}

/** Pauses between attempts: they double up to a limit, with jitter; the server may ask for longer ones. */
class Backoff {
  constructor(deadlineMs) {
    this.deadlineMs = deadlineMs;
    this.reset();
  }

  reset() {
    this.nextMs = FIRST_PAUSE_MS;
    this.endMs = undefined;
  }

  /** Wait before the next attempt, or throw the error if that would be too late. */
  async pause(error, signal) {
    this.endMs ??= Date.now() + this.deadlineMs;
    const pauseMs = Math.max(
      this.nextMs * (0.5 + Math.random() / 2),
      Math.min(error.retryAfterMs ?? 0, LONGEST_PAUSE_MS),
    );
    this.nextMs = Math.min(this.nextMs * 2, LONGEST_PAUSE_MS);
    if (Date.now() + pauseMs >= this.endMs) throw error;
    await sleep(pauseMs, signal);
  }
}

function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const timer = setTimeout(done, ms);
    function done() {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      if (signal?.aborted) reject(signal.reason);
      else resolve();
    }
    signal?.addEventListener("abort", done);
  });
}

/** The path of a topic, and of something that belongs to it. */
function topicPath(topic, ...rest) {
  return ["/topics", topic, ...rest].map((part, at) => (at ? encodeURIComponent(part) : part)).join("/");
}

function withQuery(path, fields = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(fields)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null) query.append(name, String(one));
    }
  }
  const text = query.toString();
  return text ? `${path}${path.includes("?") ? "&" : "?"}${text}` : path;
}

/** A new idempotency key; `crypto.randomUUID` is missing on pages that are served without TLS. */
function newKey() {
  const bytes = globalThis.crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function checkedGaps(gaps) {
  if (gaps !== "raise" && gaps !== "yield") throw new TypeError(`gaps is ${gaps}; give "raise" or "yield"`);
  return gaps;
}

/** Where a read begins, as the exclusive seq of the API; "now" has to be asked for. */
function cursorBefore(start) {
  if (start === "earliest") return 0;
  if (Number.isSafeInteger(start) && start >= 0) return Math.max(start - 1, 0);
  throw new TypeError(`start is ${start}; give "earliest", "now" or the first seq to read`);
}

/** Where watching a topic begins, as the API takes it: an entry of the API stays as it is. */
function watchedFrom(start) {
  if (typeof start === "object" && start !== null) return start;
  return start === "now" ? { tail: true } : { from_seq: cursorBefore(start) };
}

/** Events of a stream of server-sent events, as `{event, data, id}`; comments are left out. */
async function* serverSentEvents(pieces) {
  const decoder = new TextDecoder();
  let rest = "";
  let event = "message";
  let id = "";
  let data = [];
  for await (const piece of pieces) {
    const lines = (rest + decoder.decode(piece, { stream: true })).split("\n");
    rest = lines.pop();
    if (rest.length > EVENT_CHARS_MAX) throw new ApiFailed(0, "unreachable", "an event has no end");
    for (const line of lines) {
      if (line === "") {
        if (data.length) yield { event, data: data.join("\n"), id };
        event = "message";
        id = "";
        data = [];
      } else if (line.startsWith("event: ")) event = line.slice(7);
      else if (line.startsWith("data: ")) data.push(line.slice(6));
      else if (line.startsWith("id: ")) id = line.slice(4);
      else yield { event: "", data: "" }; // a heartbeat: the connection is alive
    }
  }
}

/** The error that a stream reports by an event; undefined for advice after which it goes on. */
function streamFailure(data) {
  const problem = JSON.parse(data);
  if (problem.code === 429) return undefined;
  const message = problem.message ?? `the server ended the stream: ${problem.code}`;
  if (problem.code === "server_shutting_down") return new ApiFailed(503, problem.code, message);
  // The session is gone: a new one continues at the same cursors.
  if (problem.code === 410) return new ApiFailed(404, "not_found", message);
  return new ApiFailed(500, String(problem.code), message);
}

/** A topics server. */
export class Client {
  #url;
  #key;
  #fetch;
  #traceparent;

  /**
   * `key` is the API key. Lost connections, 429 and 503 are retried for `deadlineMs`; an append is sent with an
   * idempotency key, so a retry appends nothing twice. An attempt without an answer ends after `timeoutMs`.
   * `traceparent` is the trace that requests belong to, or a function that returns it.
   */
  constructor(url = "http://127.0.0.1:4000", options = {}) {
    const { key, deadlineMs = 30_000, timeoutMs = 30_000, fetch = globalThis.fetch, traceparent } = options;
    this.#url = new URL(url).href.replace(/\/+$/, "");
    this.#key = key;
    this.#fetch = fetch.bind(globalThis);
    this.#traceparent = typeof traceparent === "function" ? traceparent : () => traceparent;
    this.deadlineMs = deadlineMs;
    this.timeoutMs = timeoutMs;
  }

  /** A client like this one whose requests belong to a trace; undefined leaves the client as it is. */
  following(traceparent) {
    if (!traceparent) return this;
    const { deadlineMs, timeoutMs } = this;
    return new Client(this.#url, { key: this.#key, deadlineMs, timeoutMs, fetch: this.#fetch, traceparent });
  }

  // --- Requests ------------------------------------------------------------------------------------------

  /** Send a request once and return the response of `fetch`; a lost connection is an `ApiFailed`. */
  async #send(method, target, { body, headers = {}, signal, timeoutMs = this.timeoutMs }) {
    const limit = new AbortController();
    const stop = () => limit.abort(signal.reason);
    if (signal?.aborted) stop();
    signal?.addEventListener("abort", stop);
    const timer = setTimeout(() => limit.abort(), timeoutMs);
    const sent = { ...headers };
    if (this.#key !== undefined) sent.Authorization ??= `Bearer ${this.#key}`;
    const traceparent = this.#traceparent();
    if (traceparent) sent.traceparent ??= traceparent;
    try {
      const request = { method, body, headers: sent, signal: limit.signal, redirect: "error", cache: "no-store" };
      return { response: await this.#fetch(this.#url + target, request), limit };
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      const reason = limit.signal.aborted ? `no answer within ${timeoutMs} ms` : error.cause?.message ?? error.message;
      throw new ApiFailed(0, "unreachable", `${method} ${this.#url}${target}: ${reason}`);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
    }
  }

  /** Send any request once: returns `{status, headers, text}`, whatever the status. */
  async exchange(method, target, options = {}) {
    const { response } = await this.#send(method, target, options);
    try {
      return { status: response.status, headers: Object.fromEntries(response.headers), text: await response.text() };
    } catch (error) {
      if (options.signal?.aborted) throw options.signal.reason;
      throw new ApiFailed(0, "unreachable", `${method} ${this.#url}${target}: the answer was cut: ${error.message}`);
    }
  }

  /** Send a request of the API until it is answered; returns the answer as an object. */
  async call(method, path, body = undefined, { mayRepeat = true, waitMs = 0, signal } = {}) {
    const target = "/v0" + (body === undefined ? path : withQuery(path, { strict: true }));
    const options = { signal, timeoutMs: this.timeoutMs + waitMs };
    if (body !== undefined) {
      options.body = JSON.stringify(body);
      options.headers = { "Content-Type": "application/json" };
    }
    const backoff = new Backoff(this.deadlineMs);
    for (;;) {
      try {
        return this.#answer(await this.exchange(method, target, options));
      } catch (error) {
        if (!(error instanceof ApiFailed) || !(error.isBusy || (error.isOutage && mayRepeat))) throw error;
        await backoff.pause(error, signal);
      }
    }
  }

  #answer({ status, headers, text }) {
    let body;
    try {
      body = JSON.parse(text);
    } catch {
      throw new ApiFailed(status, "foreign", `${this.#url} answered ${status} with something that is not JSON`);
    }
    if (status >= 200 && status < 300) return body;
    const { code = "unknown", message = `status ${status}`, detail } = body.error ?? {};
    throw new ApiFailed(status, code, message, detail, 1000 * (Number(headers["retry-after"]) || 0));
  }

  async #allPages(path, query, member, signal) {
    const entries = [];
    let cursor;
    do {
      const page = await this.call("GET", withQuery(path, { page_size: 1000, ...query, cursor }), undefined, { signal });
      entries.push(...page[member]);
      cursor = page.next_cursor;
    } while (cursor);
    return entries;
  }

  // --- Topics --------------------------------------------------------------------------------------------

  /** Create a topic, or replace all settings of an existing one. */
  putTopic(topic, config = {}) {
    return this.call("PUT", topicPath(topic), config);
  }

  /** The state of a topic. */
  topic(topic, { touch } = {}) {
    return this.call("GET", withQuery(topicPath(topic), { touch }));
  }

  /** All topics, or those whose names begin with `prefix`. */
  topics({ prefix, signal } = {}) {
    return this.#allPages("/topics", { prefix }, "topics", signal);
  }

  /** Delete a topic and its records; with `if_empty`, only if it has none. */
  deleteTopic(topic, { if_empty } = {}) {
    return this.call("DELETE", withQuery(topicPath(topic), { if_empty }));
  }

  /** Append one record; `options` has tag, node, meta and, for job queues, delay_ms, priority, unique_key, ... */
  append(topic, data, { idempotency_key, create, config, ...record } = {}) {
    return this.appendMany(topic, [{ data, ...record }], { idempotency_key, create, config });
  }

  /** Append up to 10000 records, all or none. */
  appendMany(topic, records, { return_seqs = false, idempotency_key = newKey(), ...options } = {}) {
    return this.call("POST", withQuery(topicPath(topic), { return_seqs }), { records, idempotency_key, ...options });
  }

  /** Read the records after `from_seq`, which is exclusive. */
  diff(topic, options = {}, { signal } = {}) {
    return this.call("POST", topicPath(topic, "diff"), options, { waitMs: options.wait_ms, signal });
  }

  /** The newest live record of each tag: of `tag` (one or several), or of all tags with `prefix`. */
  latest(topic, { tag, prefix, limit } = {}) {
    return this.call("GET", withQuery(topicPath(topic, "latest"), { tag, prefix, limit }));
  }

  /** Counts of live records by time. */
  histogram(topic, { from_ms, to_ms, buckets } = {}) {
    return this.call("GET", withQuery(topicPath(topic, "histogram"), { from_ms, to_ms, buckets }));
  }

  /**
   * Delete the records below `before_seq`, those whose tag matches `match`, or those that are both. With `dry_run` only
   * say how many these are.
   */
  deleteRecords(topic, { before_seq, match, dry_run } = {}) {
    // Repeated, a match alone would also delete records that were appended in between.
    const mayRepeat = !!dry_run || before_seq !== undefined;
    return this.call("POST", topicPath(topic, "delete"), { before_seq, match, dry_run }, { mayRepeat });
  }

  /**
   * Iterate over records from `start` ("earliest", "now" or the first seq), to the present end or, with `follow`,
   * endlessly. Lost records throw `RecordsLost`, or come as `{tombstone}` with `gaps: "yield"`.
   */
  async *read(topic, { start = "earliest", follow = start === "now", gaps = "raise", signal, ...options } = {}) {
    checkedGaps(gaps);
    let cursor = start === "now" ? (await this.topic(topic, { touch: false })).head_seq : cursorBefore(start);
    // A reader that starts with "earliest" misses nothing that had gone before.
    let ignoresGap = start === "earliest";
    let end;
    for (;;) {
      const wanted = { limit: 1000, include_tags: true, ...options, from_seq: cursor };
      if (follow) wanted.wait_ms = LONG_POLL_MS;
      const page = await this.diff(topic, wanted, { signal });
      if (page.tombstone && !ignoresGap) {
        const gap = { topic, ...page.tombstone };
        if (gaps === "raise") throw new RecordsLost(gap);
        yield { tombstone: gap };
      }
      ignoresGap = false;
      yield* page.records;
      cursor = page.next_from_seq;
      // The end of the first page: reading a topic that is being written would otherwise never end.
      end ??= page.head_seq;
      if (!follow && (page.caught_up || cursor >= end)) return;
    }
  }

  // --- Watching ------------------------------------------------------------------------------------------

  /** The events of one connection; ends with an `ApiFailed` when the connection is lost. */
  async *#events(target, headers, backoff, signal) {
    const accept = { Accept: "text/event-stream", ...headers };
    const { response, limit } = await this.#send("GET", target, { headers: accept, signal });
    if (!response.ok) {
      const headersSeen = Object.fromEntries(response.headers);
      this.#answer({ status: response.status, headers: headersSeen, text: await response.text() });
    }
    const stop = () => limit.abort();
    signal?.addEventListener("abort", stop);
    let timer = setTimeout(stop, SILENCE_MS);
    try {
      for await (const found of serverSentEvents(pieces(response.body))) {
        clearTimeout(timer);
        timer = setTimeout(stop, SILENCE_MS);
        backoff.reset();
        if (found.event) yield found;
      }
    } catch (error) {
      if (error instanceof ApiFailed) throw error;
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
      limit.abort();
    }
    signal?.throwIfAborted();
    throw new ApiFailed(0, "unreachable", `the server at ${this.#url} ended the stream`);
  }

  /**
   * Iterate over what happens to topics: `{event: "record" | "caught-up" | "tombstone" | "topic-deleted" | ..., ...}`.
   *
   * `topics` maps each name to where it begins, or lists names that begin with the next record; an entry of the
   * API, like `{consumer: name}` or `{from_time_ms, filter}`, says more. A name that ends in `*` stands for all topics
   * that begin so; those that appear later join with `topic-created`. After a lost connection or a restart of the
   * server it continues where it was, without a missing or repeated record.
   */
  async *watch(topics, { gaps = "raise", lenient, signal, ...options } = {}) {
    checkedGaps(gaps);
    const starts = Array.isArray(topics) ? Object.fromEntries(topics.map((topic) => [topic, "now"])) : topics;
    const watched = new Watched(starts, gaps);
    let session;
    const backoff = new Backoff(this.deadlineMs);
    while (!session || watched.isGoingOn) {
      try {
        if (!session) {
          const body = { include_tags: true, heartbeat_ms: HEARTBEAT_MS, ...options, topics: watched.cursors() };
          session = await this.call("POST", withQuery("/watch", { lenient }), body, { signal });
          watched.begin(session.topics);
        }
        const lastId = watched.eventId();
        const headers = lastId ? { "Last-Event-ID": lastId } : {};
        for await (const { event, data, id } of this.#events(`/v0/watch/${session.wid}`, headers, backoff, signal)) {
          const found = watched.take(event, data, id);
          if (found) yield found;
          if (!watched.isGoingOn) return;
        }
      } catch (error) {
        if (!(error instanceof ApiFailed)) throw error;
        // A server that was restarted does not know the session: a new one begins at the same cursors.
        if (error.status === 404 && session) session = undefined;
        else if (error.isBusy || error.isOutage) await backoff.pause(error, signal);
        else throw error;
      }
    }
  }

  // --- Routers -------------------------------------------------------------------------------------------

  /** Copy what is appended to `source` from now on to `dest`. */
  putRouter(router, { source, dest, ...options }) {
    return this.call("PUT", `/routers/${encodeURIComponent(router)}`, { source, dest, ...options });
  }

  /** The state of a router. */
  router(router) {
    return this.call("GET", `/routers/${encodeURIComponent(router)}`);
  }

  /** All routers, or those with this prefix, source or dest. */
  routers({ prefix, source, dest, signal } = {}) {
    return this.#allPages("/routers", { prefix, source, dest }, "routers", signal);
  }

  /** Delete a router; the copies stay. */
  deleteRouter(router) {
    return this.call("DELETE", `/routers/${encodeURIComponent(router)}`);
  }

  // --- Consumers -----------------------------------------------------------------------------------------

  /** Create a consumer at `start`, or replace the settings of an existing one. */
  putConsumer(topic, consumer, options = {}) {
    return this.call("PUT", topicPath(topic, "consumers", consumer), options);
  }

  /** The state of a consumer: cursor, lag, owner. */
  consumer(topic, consumer) {
    return this.call("GET", topicPath(topic, "consumers", consumer));
  }

  /** The consumers of a topic. */
  consumers(topic, { signal } = {}) {
    return this.#allPages(topicPath(topic, "consumers"), {}, "consumers", signal);
  }

  /** Delete a consumer. */
  deleteConsumer(topic, consumer) {
    return this.call("DELETE", topicPath(topic, "consumers", consumer));
  }

  /** Read from the cursor of a consumer; `commit` moves it first. */
  readConsumer(topic, consumer, options = {}, { signal } = {}) {
    return this.call("POST", topicPath(topic, "consumers", consumer, "read"), options, { waitMs: options.wait_ms, signal });
  }

  /** Everything up to `seq` is processed. */
  commitConsumer(topic, consumer, seq, { owner_epoch } = {}) {
    return this.call("POST", topicPath(topic, "consumers", consumer, "commit"), { seq, owner_epoch });
  }

  /** Become the owner of a consumer; every earlier owner is fenced. */
  acquireConsumer(topic, consumer, owner, { ttl_ms } = {}) {
    return this.call("POST", topicPath(topic, "consumers", consumer, "acquire"), { owner, ttl_ms });
  }

  /** Move the cursor of a consumer to "earliest", "latest", `{seq}` or `{time_ms}`. */
  resetConsumer(topic, consumer, to, { dry_run } = {}) {
    return this.call("POST", topicPath(topic, "consumers", consumer, "reset"), { to, dry_run });
  }

  // --- Job queues ----------------------------------------------------------------------------------------

  /** Lease up to `max` jobs. Not repeated after a lost answer: those jobs stay leased until their leases end. */
  claim(queue, { node, max, lease_ms }) {
    return this.call("POST", topicPath(queue, "claim"), { node, max, lease_ms }, { mayRepeat: false });
  }

  /** Delete finished jobs. */
  ack(queue, { node, seqs, lease_ids }) {
    return this.call("POST", topicPath(queue, "ack"), { node, seqs, lease_ids });
  }

  /** Return jobs; they can be claimed again after `delay_ms`. */
  nack(queue, { node, seqs, lease_ids, delay_ms, error }) {
    // Without lease ids a repeat could return a job that this worker has claimed again.
    const mayRepeat = lease_ids !== undefined;
    return this.call("POST", topicPath(queue, "nack"), { node, seqs, lease_ids, delay_ms, error }, { mayRepeat });
  }

  /** Extend leases: they end `lease_ms` from now. */
  extend(queue, { node, seqs, lease_ids, lease_ms }) {
    return this.call("POST", topicPath(queue, "extend"), { node, seqs, lease_ids, lease_ms });
  }

  /** Iterate over jobs that the server pushes, at most `max` unfinished at a time; leases end with the iteration. */
  async *work(queue, { node, max = 1, lease_ms, signal }) {
    const target = withQuery("/v0" + topicPath(queue, "work"), { node, max, lease_ms });
    const backoff = new Backoff(this.deadlineMs);
    for (;;) {
      try {
        for await (const { event, data } of this.#events(target, {}, backoff, signal)) {
          if (event === "job") yield JSON.parse(data);
          const failure = event === "error" ? streamFailure(data) : undefined;
          if (failure) throw failure;
        }
      } catch (error) {
        if (!(error instanceof ApiFailed) || !(error.isBusy || error.isOutage)) throw error;
        await backoff.pause(error, signal);
      }
    }
  }

  /** A page of the jobs of a job queue with their states, and counts. */
  jobs(queue, query = {}) {
    return this.call("GET", withQuery(topicPath(queue, "jobs"), query));
  }

  /** One job with its last attempts. */
  job(queue, seq) {
    return this.call("GET", topicPath(queue, "jobs", String(seq)));
  }

  /** Delete jobs: `seqs` or `filter`. */
  cancelJobs(queue, { seqs, filter }) {
    return this.call("POST", topicPath(queue, "jobs", "cancel"), { seqs, filter });
  }

  /** Make delayed jobs due: `seqs` or `filter`. */
  retryJobs(queue, { seqs, filter }) {
    return this.call("POST", topicPath(queue, "jobs", "retry"), { seqs, filter });
  }

  /** Give no jobs to workers until `resume`. */
  pause(queue) {
    return this.call("POST", topicPath(queue, "pause"), {});
  }

  /** Give jobs to workers again. */
  resume(queue) {
    return this.call("POST", topicPath(queue, "resume"), {});
  }

  /** Delete waiting jobs: those of `filter`, or `all`. */
  purge(queue, { filter, all, dry_run }) {
    return this.call("POST", topicPath(queue, "purge"), { filter, all, dry_run }, { mayRepeat: !!dry_run });
  }

  /** Move the jobs of a dead-letter topic back to where they failed, or `to` another job queue. */
  redrive(topic, { to, filter, limit, dry_run } = {}) {
    return this.call("POST", topicPath(topic, "redrive"), { to, filter, limit, dry_run }, { waitMs: 30_000 });
  }

  // --- Schedules -----------------------------------------------------------------------------------------

  /** Append a record by a cron expression. */
  putSchedule(schedule, options) {
    return this.call("PUT", `/schedules/${encodeURIComponent(schedule)}`, options);
  }

  /** The state of a schedule. */
  schedule(schedule) {
    return this.call("GET", `/schedules/${encodeURIComponent(schedule)}`);
  }

  /** All schedules. */
  schedules({ signal } = {}) {
    return this.#allPages("/schedules", {}, "schedules", signal);
  }

  /** Delete a schedule. */
  deleteSchedule(schedule) {
    return this.call("DELETE", `/schedules/${encodeURIComponent(schedule)}`);
  }
}

/** The pieces of a body; a browser may not be able to iterate over it by itself. */
async function* pieces(body) {
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.releaseLock();
  }
}

/** How far each watched topic was read; deleted topics are left out. */
class Watched {
  #entries;
  #patterns;
  #gaps;
  #at;
  #ignoresGap;
  // With patterns the topics are too many to name in a header, and the server's id stands for them.
  #lastId = "";

  constructor(starts, gaps) {
    this.#entries = Object.fromEntries(Object.entries(starts).map(([topic, start]) => [topic, watchedFrom(start)]));
    this.#patterns = Object.keys(starts).filter((topic) => topic.endsWith("*"));
    this.#gaps = gaps;
    // A watch from "earliest" misses nothing that had gone before.
    this.#ignoresGap = new Set(Object.keys(starts).filter((topic) => starts[topic] === "earliest"));
  }

  get isGoingOn() {
    return this.#patterns.length > 0 || this.#at.size > 0;
  }

  /** Where a session begins, as the API takes it. */
  cursors() {
    if (!this.#at) return this.#entries;
    const known = [...this.#at].map(([topic, seq]) => [topic, { ...this.#restOf(topic), from_seq: seq }]);
    return Object.fromEntries([...this.#patterns.map((pattern) => [pattern, this.#restOf(pattern)]), ...known]);
  }

  /** What an entry says besides where it begins. */
  #restOf(topic) {
    const pattern = this.#patterns.find((each) => topic.startsWith(each.slice(0, -1)));
    const { from_seq, tail, from_time_ms, consumer, ...rest } = this.#entries[topic] ?? this.#entries[pattern] ?? {};
    return rest;
  }

  begin(topics) {
    const before = this.#patterns.length ? undefined : this.#at;
    this.#lastId = "";
    this.#at = new Map();
    for (const [topic, { from_seq }] of Object.entries(topics)) this.#at.set(topic, before?.get(topic) ?? from_seq);
  }

  /** The cursors as `Last-Event-ID`: the server's are ahead by what a lost connection did not deliver. */
  eventId() {
    if (this.#patterns.length) return this.#lastId;
    const bytes = new TextEncoder().encode(JSON.stringify(Object.fromEntries(this.#at)));
    const text = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
    return text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  }

  /** Move the cursor; returns the event if it is to be yielded, throws a gap or a failure. */
  take(event, data, id) {
    this.#lastId = id || this.#lastId;
    if (event === "error") {
      const failure = streamFailure(data);
      if (failure) throw failure;
      return undefined;
    }
    const found = { event, ...JSON.parse(data) };
    const topic = found.topic;
    if (!this.#at.has(topic) && !this.#patterns.length) return undefined;
    const ignoresGap = this.#ignoresGap.delete(topic);
    if (event === "record") this.#at.set(topic, found.to_seq);
    else if (event === "topic-created") this.#at.set(topic, 0);
    else if (event === "topic-deleted") this.#at.delete(topic);
    else if (event === "tombstone") {
      this.#at.set(topic, found.reason === "recreated" ? 0 : found.gap_to);
      if (ignoresGap) return undefined;
      if (this.#gaps === "raise") throw new RecordsLost(found);
    }
    return found;
  }
}

/**
 * Run jobs of a job queue until `signal` is aborted: `handler(job, client)` is awaited, then the job is acked; if it
 * throws, the job is nacked with the error and comes again. Leases are extended while a handler runs; a stopping worker
 * finishes its jobs. The client that the handler gets sends requests that belong to the trace of the job.
 * A failed job is retried as the queue's `retry` says, by default after a pause that doubles with each delivery, from
 * `first_delay_ms` to `longest_delay_ms`.
 * `onError(error, job)` is told of an ack or nack that failed: such a job returns when its lease ends.
 */
export async function runWorker(client, queue, handler, options = {}) {
  const { concurrency = 1, lease_ms = 30_000, signal, onError = console.error } = options;
  const { first_delay_ms = 1000, longest_delay_ms = 300_000 } = options;
  const node = options.node ?? `js-${newKey().slice(0, 12)}`;
  const running = new Set();

  async function failed(job, one, { name = "Error", message = "", stack = "" }) {
    const longest = Math.min(first_delay_ms * 2 ** (job.deliveries - 1), longest_delay_ms);
    const { retry } = (await client.topic(queue, { touch: false })).config;
    const delay_ms = retry ? undefined : Math.floor(longest * (0.5 + Math.random() / 2));
    return client.nack(queue, { ...one, delay_ms, error: { type: name, message, trace: stack } });
  }

  async function run(job) {
    const one = { node, seqs: [job.$seq], lease_ids: [job.lease_id] };
    // A failed extension is not reported: the ack or nack tells whether the lease was lost.
    const beat = setInterval(() => client.extend(queue, { ...one, lease_ms }).catch(() => {}), lease_ms / 3);
    let outcome;
    try {
      await handler(job, client.following(job.meta?.traceparent));
      outcome = () => client.ack(queue, one);
    } catch (error) {
      outcome = () => failed(job, one, error instanceof Error ? error : { message: String(error) });
    } finally {
      clearInterval(beat);
    }
    await outcome().catch((error) => onError(error, job));
  }

  // The stream outlives `signal` until running jobs are finished: leases end with it.
  const stream = new AbortController();
  const stop = () => {
    if (!running.size) stream.abort();
  };
  signal?.addEventListener("abort", stop);
  if (signal?.aborted) stop();
  try {
    for await (const job of client.work(queue, { node, max: concurrency, lease_ms, signal: stream.signal })) {
      if (signal?.aborted) continue; // pushed while it stops: the lease ends with the stream
      // Started after it is counted: a handler that ends the worker at once must still be waited for.
      const task = Promise.resolve(job).then(run).then(() => {
        running.delete(task);
        if (signal?.aborted) stop();
      });
      running.add(task);
    }
  } catch (error) {
    if (!stream.signal.aborted) throw error;
  } finally {
    signal?.removeEventListener("abort", stop);
    await Promise.all(running);
    stream.abort();
  }
}
