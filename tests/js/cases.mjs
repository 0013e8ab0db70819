// What the JavaScript client promises, as cases that run in Node and in a browser.
//
// Each case gets a client with retries, the module itself, and a topic name of its own; it throws if the promise is broken.

function equal(found, wanted, what = "values differ") {
  if (JSON.stringify(found) !== JSON.stringify(wanted))
    throw new Error(`${what}: found ${JSON.stringify(found)}, wanted ${JSON.stringify(wanted)}`);
}

async function thrown(promise, kind) {
  try {
    await promise;
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Error(`no ${kind.name} was thrown`);
}

async function collect(iterator, count) {
  const found = [];
  for await (const one of iterator) {
    found.push(one);
    if (found.length === count) break;
  }
  return found;
}

export const CASES = {
  async records_are_read_in_order_with_tag_and_meta({ client, topic }) {
    equal((await client.append(topic, { n: 1, text: "ü\u2028<" }, { tag: "a", meta: { k: 1 } })).last_seq, 1);
    equal((await client.appendMany(topic, [{ data: 2 }, { data: null }], { return_seqs: true })).seqs, [2, 3]);
    const found = await collect(client.read(topic));
    equal(found.map((record) => [record.$seq, record.data]), [[1, { n: 1, text: "ü\u2028<" }], [2, 2], [3, null]]);
    equal([found[0].$tag, found[0].meta], ["a", { k: 1 }]);
  },

  async a_read_of_many_pages_ends_with_the_present_end({ client, topic }) {
    for (let batch = 0; batch < 3; batch++)
      await client.appendMany(topic, Array.from({ length: 700 }, (_, at) => ({ data: batch * 700 + at })));
    equal((await collect(client.read(topic, { limit: 500 }))).map((record) => record.data), [...Array(2100).keys()]);
    equal((await collect(client.read(topic, { start: 2100 }))).map((record) => record.$seq), [2100]);
  },

  async a_follower_gets_what_is_appended_later({ client, topic }) {
    await client.append(topic, "before");
    const reading = collect(client.read(topic, { follow: true }), 2);
    await client.append(topic, "after");
    equal((await reading).map((record) => record.data), ["before", "after"]);
  },

  async a_repeated_idempotency_key_appends_nothing({ client, topic }) {
    await client.append(topic, 1, { idempotency_key: "k" });
    equal((await client.append(topic, 1, { idempotency_key: "k" })).deduped, true);
    equal((await client.topic(topic)).count, 1);
  },

  async lost_records_are_an_error_or_a_tombstone({ client, topic, RecordsLost }) {
    await client.putTopic(topic, { cap_records: 2 });
    await client.appendMany(topic, [1, 2, 3, 4, 5].map((data) => ({ data })));
    equal((await collect(client.read(topic))).map((record) => record.$seq), [4, 5], "from the earliest nothing is missed");
    const { gap } = await thrown(collect(client.read(topic, { start: 2 })), RecordsLost);
    equal([gap.topic, gap.gap_from, gap.gap_to, gap.reason], [topic, 2, 3, "cap"]);
    const [first, ...rest] = await collect(client.read(topic, { start: 2, gaps: "yield" }));
    equal([first.tombstone.gap_to, rest.map((record) => record.$seq)], [3, [4, 5]]);
  },

  async errors_have_the_code_and_detail_of_the_server({ client, topic, ApiFailed }) {
    const error = await thrown(client.topic(topic), ApiFailed);
    equal([error.status, error.code, error.detail], [404, "topic_not_found", { topic }]);
    equal((await thrown(client.putTopic("no name"), ApiFailed)).code, "invalid_request");
    equal((await thrown(client.putTopic(topic, { cap_record: 1 }), ApiFailed)).status, 400, "a typo is refused");
  },

  async nothing_listening_is_an_error_after_the_deadline({ Client, ApiFailed }) {
    const client = new Client("http://127.0.0.1:9", { deadlineMs: 300 });
    const error = await thrown(client.topics(), ApiFailed);
    equal([error.status, error.code], [0, "unreachable"]);
  },

  async topics_and_routers_are_listed_and_deleted({ client, topic }) {
    await client.putTopic(topic);
    await client.putRouter(`${topic}-r`, { source: topic, dest: `${topic}-copy` });
    await client.append(topic, 7);
    equal((await collect(client.read(`${topic}-copy`))).map((record) => record.data), [7]);
    equal((await client.topics({ prefix: topic })).map((found) => found.topic), [topic, `${topic}-copy`]);
    equal((await client.routers({ source: topic })).map((found) => found.router), [`${topic}-r`]);
    equal((await client.router(`${topic}-r`)).forwarded_total, 1);
    equal((await client.deleteRouter(`${topic}-r`)).deleted, true);
    equal((await client.deleteTopic(topic)).deleted, true);
  },

  async deleted_records_are_not_read({ client, topic }) {
    await client.appendMany(topic, ["a", "b", "a"].map((tag) => ({ data: tag, tag })));
    equal((await client.deleteRecords(topic, { match: "a", dry_run: true })).deleted, 2);
    equal((await client.deleteRecords(topic, { match: "a" })).deleted, 2);
    equal((await collect(client.read(topic))).map((record) => record.data), ["b"]);
  },

  async a_watch_gives_backlog_live_records_and_the_end({ client, topic }) {
    await client.append(topic, 1);
    const events = [];
    for await (const event of client.watch({ [topic]: "earliest" })) {
      events.push(event);
      if (event.event === "caught-up") await client.append(topic, 2);
      if (event.event === "record" && event.to_seq === 2) await client.deleteTopic(topic);
    }
    equal(events.map((event) => event.event), ["record", "caught-up", "record", "topic-deleted"]);
    equal(events.filter((event) => event.records).flatMap((event) => event.records.map((record) => record.data)), [1, 2]);
  },

  async a_watch_of_a_prefix_gets_topics_that_appear_later({ client, topic }) {
    await client.append(`${topic}.a`, 1, { tag: "eu" });
    const events = [];
    for await (const event of client.watch({ [`${topic}.*`]: { from_seq: 0, filter: ["tag", "Eq", "eu"] } })) {
      events.push(event);
      if (event.event === "caught-up" && event.topic === `${topic}.a`)
        await client.appendMany(`${topic}.b`, ["us", "eu"].map((tag) => ({ data: tag, tag })));
      if (event.event === "record" && event.topic === `${topic}.b`) break;
    }
    equal(events.map((event) => [event.event, event.topic.slice(-1)]), [
      ["record", "a"],
      ["caught-up", "a"],
      ["topic-created", "b"],
      ["record", "b"],
    ]);
    equal(events.at(-1).records.map((record) => record.data), ["eu"]);
  },

  async a_watch_begins_at_a_consumer_and_warns_of_its_loss({ client, topic }) {
    await client.putTopic(topic, { cap_records: 10 });
    await client.appendMany(topic, Array.from({ length: 10 }, (_, data) => ({ data })));
    await client.putConsumer(topic, "c", { start: { seq: 3 } });
    const events = [];
    for await (const event of client.watch({ [topic]: { consumer: "c" } })) {
      events.push(event);
      if (event.event === "caught-up") await client.appendMany(topic, [{ data: 10 }, { data: 11 }]);
      if (event.event === "consumer-at-risk") break;
    }
    equal(events[0].records[0].$seq, 3);
    equal([events.at(-1).consumer, events.at(-1).cursor, events.at(-1).evict_floor], ["c", 2, 3]);
  },

  async requests_and_handlers_belong_to_a_trace({ client, topic, runWorker }) {
    const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    await client.putTopic(topic, { type: "queue" });
    await client.following(trace).append(topic, "job");
    await client.append(topic, "plain");
    const stop = new AbortController();
    await runWorker(
      client,
      topic,
      async (job, traced) => {
        await traced.append(`${topic}-done`, job.data);
        if (job.data === "plain") stop.abort();
      },
      { signal: stop.signal },
    );
    const done = await collect(client.read(`${topic}-done`), 2);
    equal(done.map((record) => [record.data, record.meta?.traceparent]), [["job", trace], ["plain", undefined]]);
  },

  async a_watch_ends_when_its_signal_is_aborted({ client, topic }) {
    await client.putTopic(topic);
    const stop = new AbortController();
    const watching = collect(client.watch([topic], { signal: stop.signal }));
    stop.abort(new RangeError("enough"));
    await thrown(watching, RangeError);
  },

  async a_consumer_keeps_its_cursor_and_fences_earlier_owners({ client, topic, ApiFailed }) {
    await client.appendMany(topic, [1, 2, 3].map((data) => ({ data })));
    equal((await client.putConsumer(topic, "c")).lag_records, 3);
    const first = await client.acquireConsumer(topic, "c", "one");
    const page = await client.readConsumer(topic, "c", { limit: 2, owner_epoch: first.owner_epoch });
    equal(page.records.map((record) => record.data), [1, 2]);
    equal((await client.commitConsumer(topic, "c", 2, { owner_epoch: first.owner_epoch })).cursor, 2);
    const second = await client.acquireConsumer(topic, "c", "two");
    equal((await thrown(client.commitConsumer(topic, "c", 3, { owner_epoch: first.owner_epoch }), ApiFailed)).code, "fenced");
    equal((await client.resetConsumer(topic, "c", "earliest", { dry_run: true })).records, 2);
    equal((await client.commitConsumer(topic, "c", 3, { owner_epoch: second.owner_epoch })).lag_records, 0);
    equal((await client.consumers(topic)).map((found) => found.name), ["c"]);
    equal((await client.deleteConsumer(topic, "c")).deleted, true);
  },

  async jobs_are_claimed_extended_returned_and_acked({ client, topic }) {
    await client.putTopic(topic, { type: "queue" });
    await client.append(topic, "job");
    const [job] = (await client.claim(topic, { node: "w", lease_ms: 5000 })).claimed;
    const one = { node: "w", seqs: [job.$seq], lease_ids: [job.lease_id] };
    equal((await client.extend(topic, { ...one, lease_ms: 9000 })).extended, 1);
    equal((await client.nack(topic, one)).nacked, 1);
    const [again] = (await client.claim(topic, { node: "w" })).claimed;
    equal([again.data, again.deliveries], ["job", 2]);
    equal((await client.ack(topic, { node: "w", seqs: [again.$seq], lease_ids: [again.lease_id] })).acked, 1);
  },

  async a_worker_runs_every_job_and_retries_what_failed({ client, topic, runWorker }) {
    await client.putTopic(topic, { type: "queue" });
    await client.appendMany(topic, Array.from({ length: 20 }, (_, data) => ({ data })));
    const stop = new AbortController();
    const done = new Set();
    let failures = 0;
    await runWorker(
      client,
      topic,
      async (job) => {
        if (job.data === 7 && job.deliveries === 1) {
          failures++;
          throw new TypeError("not yet");
        }
        done.add(job.data);
        if (done.size === 20) stop.abort();
      },
      { concurrency: 4, signal: stop.signal, first_delay_ms: 1 },
    );
    equal([[...done].sort((a, b) => a - b), failures], [[...Array(20).keys()], 1]);
    equal((await client.topic(topic)).count, 0, "every job was acked");
  },

  async a_failed_job_waits_as_the_queue_says_or_longer_each_time({ client, topic, runWorker }) {
    for (const [queue, retry, least] of [[topic, null, 500], [`${topic}-own`, { base_ms: 3_600_000 }, 3_000_000]]) {
      await client.putTopic(queue, { type: "queue", retry });
      await client.append(queue, 1);
      const stop = new AbortController();
      const fail = () => {
        stop.abort();
        throw new RangeError("no");
      };
      await runWorker(client, queue, fail, { signal: stop.signal });
      const job = await client.job(queue, 1);
      equal([job.state, job.last_error.type, job.last_error.message], ["failed", "RangeError", "no"]);
      equal(job.run_at - job.attempts[0].ended_ts >= least, true, "it waits");
    }
  },

  async a_handler_that_ends_the_worker_has_its_job_acked({ client, topic, runWorker }) {
    await client.putTopic(topic, { type: "queue" });
    await client.append(topic, "last");
    const stop = new AbortController();
    await runWorker(client, topic, () => stop.abort(), { signal: stop.signal });
    equal((await client.topic(topic)).count, 0, "the job was acked");
  },
};
