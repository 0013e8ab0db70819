// Types of everlog.js. Options and answers have the names of the HTTP API.

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type Filter = Json[];
export type Start = "earliest" | "now" | number;
export type ConsumerStart = "earliest" | "latest" | { seq: number } | { time_ms: number };
export type WatchStart =
  | Start
  | { from_seq?: number; tail?: boolean; from_time_ms?: number; consumer?: string; filter?: Filter };
export type Gaps = "raise" | "yield";

export interface ClientOptions {
  key?: string;
  deadlineMs?: number;
  timeoutMs?: number;
  fetch?: typeof fetch;
  traceparent?: string | (() => string | undefined);
}

export interface Signalled {
  signal?: AbortSignal;
}

export interface NewRecord {
  data: Json;
  tag?: string;
  node?: string;
  meta?: { [name: string]: Json };
  delay_ms?: number;
  run_at?: number;
  priority?: number;
  unique_key?: string;
  concurrency_key?: string;
  max_deliveries?: number;
}

export interface LogRecord<T = Json> {
  $seq: number;
  $ts: number;
  $tag?: string;
  $node?: string;
  meta?: { [name: string]: Json };
  data: T;
}

export interface Job<T = Json> extends LogRecord<T> {
  lease_id: string;
  deadline: number;
  deliveries: number;
}

export interface Tombstone {
  topic: string;
  gap_from: number;
  gap_to: number;
  reason: string;
  earliest_seq: number;
  head_seq: number;
}

export interface Appended {
  topic: string;
  first_seq?: number;
  last_seq?: number;
  seqs?: number[];
  head_seq: number;
  count: number;
  created: boolean;
  deduped: boolean;
  unique_hits?: number;
}

export interface Diff<T = Json> {
  topic: string;
  records: LogRecord<T>[];
  next_from_seq: number;
  head_seq: number;
  earliest_seq: number;
  caught_up: boolean;
  tombstone: Omit<Tombstone, "topic"> | null;
  lag: number;
}

export interface DiffOptions {
  from_seq?: number;
  from_time_ms?: number;
  limit?: number;
  node?: string | string[];
  filter?: Filter;
  include_tags?: boolean;
  include_meta?: boolean;
  wait_ms?: number;
  max_batch_bytes?: number;
}

export interface ReadOptions extends Omit<DiffOptions, "from_seq" | "from_time_ms" | "wait_ms">, Signalled {
  start?: Start;
  follow?: boolean;
  gaps?: Gaps;
}

export interface WatchOptions extends Signalled {
  gaps?: Gaps;
  lenient?: boolean;
  node?: string | string[];
  limit?: number;
  include_tags?: boolean;
  include_meta?: boolean;
  include_data?: boolean;
  consistency?: "eventual" | "strong";
}

export type WatchEvent<T = Json> =
  | { event: "record"; topic: string; records: LogRecord<T>[]; from_seq: number; to_seq: number; head_seq: number }
  | { event: "caught-up"; topic: string; head_seq: number }
  | ({ event: "tombstone" } & Tombstone)
  | { event: "topic-created"; topic: string; head_seq: number }
  | { event: "consumer-at-risk"; topic: string; consumer: string; cursor: number; evict_floor: number; head_seq: number }
  | { event: "topic-deleted"; topic: string; head_seq: number; reason: string };

export interface ConsumerState {
  name: string;
  topic: string;
  cursor: number;
  next_seq: number;
  head_seq: number;
  lag_records: number;
  lag_ms: number;
  at_risk: boolean;
  hold: boolean;
  owner: string | null;
  owner_epoch: number;
  created_ts: number;
  committed_ts: number | null;
}

export interface JobError {
  type?: string;
  message?: string;
  trace?: string;
}

export interface Leases {
  node: string;
  seqs: number[];
  lease_ids?: string[];
}

type Answer = { [name: string]: any };

export class ApiFailed extends Error {
  status: number;
  code: string;
  detail?: { [name: string]: Json };
  retryAfterMs: number;
  readonly isBusy: boolean;
  readonly isOutage: boolean;
}

export class RecordsLost extends Error {
  gap: Tombstone;
}

export class Client {
  constructor(url?: string, options?: ClientOptions);
  deadlineMs: number;
  timeoutMs: number;

  following(traceparent: string | undefined): Client;
  exchange(
    method: string,
    target: string,
    options?: { body?: BodyInit; headers?: Record<string, string>; timeoutMs?: number } & Signalled,
  ): Promise<{ status: number; headers: Record<string, string>; text: string }>;
  call(
    method: string,
    path: string,
    body?: object,
    options?: { mayRepeat?: boolean; waitMs?: number } & Signalled,
  ): Promise<Answer>;

  putTopic(topic: string, config?: object): Promise<Answer>;
  topic(topic: string, options?: { touch?: boolean }): Promise<Answer>;
  topics(options?: { prefix?: string } & Signalled): Promise<Answer[]>;
  deleteTopic(topic: string, options?: { if_empty?: boolean }): Promise<Answer>;
  append(
    topic: string,
    data: Json,
    options?: Omit<NewRecord, "data"> & { idempotency_key?: string; create?: boolean; config?: object },
  ): Promise<Appended>;
  appendMany(
    topic: string,
    records: NewRecord[],
    options?: { node?: string; idempotency_key?: string; create?: boolean; config?: object; return_seqs?: boolean },
  ): Promise<Appended>;
  diff<T = Json>(topic: string, options?: DiffOptions, call?: Signalled): Promise<Diff<T>>;
  latest<T = Json>(
    topic: string,
    options?: { tag?: string | string[]; prefix?: string; limit?: number },
  ): Promise<{ records: LogRecord<T>[] } & Answer>;
  histogram(topic: string, options?: { from_ms?: number; to_ms?: number; buckets?: number }): Promise<Answer>;
  deleteRecords(
    topic: string,
    options: { before_seq?: number; match?: string | string[]; dry_run?: boolean },
  ): Promise<Answer>;
  read<T = Json>(topic: string, options?: ReadOptions): AsyncGenerator<LogRecord<T> & { tombstone?: Tombstone }>;
  watch<T = Json>(topics: string[] | Record<string, WatchStart>, options?: WatchOptions): AsyncGenerator<WatchEvent<T>>;

  putRouter(router: string, options: { source: string; dest: string } & Answer): Promise<Answer>;
  router(router: string): Promise<Answer>;
  routers(options?: { prefix?: string; source?: string; dest?: string } & Signalled): Promise<Answer[]>;
  deleteRouter(router: string): Promise<Answer>;

  putConsumer(
    topic: string,
    consumer: string,
    options?: { start?: ConsumerStart; hold?: boolean; hold_max_ms?: number; filter?: Filter; node?: string | string[] },
  ): Promise<ConsumerState>;
  consumer(topic: string, consumer: string): Promise<ConsumerState>;
  consumers(topic: string, options?: Signalled): Promise<ConsumerState[]>;
  deleteConsumer(topic: string, consumer: string): Promise<Answer>;
  readConsumer<T = Json>(
    topic: string,
    consumer: string,
    options?: { limit?: number; max_bytes?: number; wait_ms?: number; commit?: number; owner_epoch?: number },
    call?: Signalled,
  ): Promise<Diff<T> & { consumer: ConsumerState }>;
  commitConsumer(topic: string, consumer: string, seq: number, options?: { owner_epoch?: number }): Promise<ConsumerState>;
  acquireConsumer(
    topic: string,
    consumer: string,
    owner: string,
    options?: { ttl_ms?: number },
  ): Promise<{ owner_epoch: number; expires_ts: number }>;
  resetConsumer(
    topic: string,
    consumer: string,
    to: ConsumerStart,
    options?: { dry_run?: boolean },
  ): Promise<{ cursor_before: number; cursor: number; records: number }>;

  claim<T = Json>(
    queue: string,
    options: { node: string; max?: number; lease_ms?: number },
  ): Promise<{ claimed: Job<T>[]; count: number; ready: number }>;
  ack(queue: string, leases: Leases): Promise<Answer>;
  nack(queue: string, leases: Leases & { delay_ms?: number; error?: JobError }): Promise<Answer>;
  extend(queue: string, leases: Leases & { lease_ms: number }): Promise<Answer>;
  work<T = Json>(
    queue: string,
    options: { node: string; max?: number; lease_ms?: number } & Signalled,
  ): AsyncGenerator<Job<T>>;
  jobs(queue: string, query?: { state?: string; tag?: string; key?: string; limit?: number; cursor?: string; include?: "data" }): Promise<Answer>;
  job(queue: string, seq: number): Promise<Answer>;
  cancelJobs(queue: string, which: { seqs?: number[]; filter?: Filter }): Promise<{ cancelled: number }>;
  retryJobs(queue: string, which: { seqs?: number[]; filter?: Filter }): Promise<{ retried: number }>;
  pause(queue: string): Promise<Answer>;
  resume(queue: string): Promise<Answer>;
  purge(queue: string, which: { filter?: Filter; all?: boolean; dry_run?: boolean }): Promise<{ purged: number }>;
  redrive(
    topic: string,
    options?: { to?: string; filter?: Filter; limit?: number; dry_run?: boolean },
  ): Promise<{ moved: number; left: number; queues: Record<string, number> }>;

  putSchedule(schedule: string, options: { topic: string; cron: string; record: NewRecord } & Answer): Promise<Answer>;
  schedule(schedule: string): Promise<Answer>;
  schedules(options?: Signalled): Promise<Answer[]>;
  deleteSchedule(schedule: string): Promise<Answer>;
}

export function runWorker<T = Json>(
  client: Client,
  queue: string,
  handler: (job: Job<T>, client: Client) => unknown | Promise<unknown>,
  options?: {
    node?: string;
    concurrency?: number;
    lease_ms?: number;
    first_delay_ms?: number;
    longest_delay_ms?: number;
    onError?: (error: Error, job: Job<T>) => void;
  } & Signalled,
): Promise<void>;
