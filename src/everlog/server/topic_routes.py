"""The routes about topics and their records.

Owns what these answers look like; the engine decides what is in them.
"""

from __future__ import annotations

from functools import partial

import msgspec

from everlog.api_types import TopicType
from everlog.errors import BatchTooLarge, TopicNotEmpty
from everlog.native.topics.log import SEQS_LISTED, SEQS_OMITTED, json_names, render_fields
from everlog.server.app import App, Call, Route, query_flag, query_seq
from everlog.server.auth import Key, Scope, allows_name
from everlog.server.bodies import (
    Append,
    DeleteBody,
    DiffBody,
    check_counts,
    decode,
    decode_append,
    filter_of,
)
from everlog.server.errors import ApiError, invalid
from everlog.server.long_poll import LongPoll
from everlog.server.pages import cursor_behind, name_in_cursor, page_size
from everlog.server.router_wait import when_forwarded
from everlog.server.step_calls import StepCall
from everlog.topics import (
    Appended,
    Commit,
    Engine,
    RecordsDeleted,
    TopicConfig,
    TopicPut,
    TopicState,
)
from everlog.topics.append import ByteQuota
from everlog.topics.commits import together
from everlog.topics.config import MAX_RECORDS_PER_APPEND, U64_MAX

_json = msgspec.json.Encoder()


class TopicRoutes:
    """Handlers of everything below /v0/topics but queues."""

    def __init__(self, app: App) -> None:
        self._app = app
        app.add("GET", "/v0/topics", Route(Scope.READ, self.list_topics))
        app.add("PUT", "/v0/topics/:name", Route(Scope.ADMIN, self.put_topic))
        app.add("GET", "/v0/topics/:name", Route(Scope.READ, self.get_topic))
        app.add("DELETE", "/v0/topics/:name", Route(Scope.DELETE, self.delete_topic))
        app.add("POST", "/v0/topics/:name", Route(Scope.WRITE, self.append, needs_poll=False))
        app.add("GET", "/v0/topics/:name/account", Route(Scope.READ, self.account))
        app.add("POST", "/v0/topics/:name/diff", Route(Scope.READ, self.diff))
        app.add("POST", "/v0/topics/:name/delete", Route(Scope.DELETE, self.delete_records))

    @property
    def _engine(self) -> Engine:
        return self._app.ready_engine()

    # --- Topics ------------------------------------------------------------------------------------------

    def put_topic(self, call: Call) -> None:
        """PUT /v0/topics/:topic."""
        body = decode(call, TopicConfig, if_empty=TopicConfig())
        check_counts(body)
        check_dead_letter(call.key, body)
        _check_room(self._app, call.key, call.name, body)
        steps = self._engine.put_steps(call.name, body)
        StepCall(self._app, call, steps, partial(self._answer_put, call)).run()

    def _answer_put(self, call: Call, put: TopicPut) -> None:
        if put.created:
            self._app.topics_of_keys.created(call.key, call.name)
        _count_dead_letter(self._app, call.key, put.config)
        answer = {"topic": call.name, "created": put.created, "config": put.config}
        self._app.answer_with(call, put.commit, answer, 201 if put.created else 200)

    def get_topic(self, call: Call) -> None:
        """GET /v0/topics/:topic."""
        when_forwarded(self._app, call, call.name, partial(self._answer_topic, call))

    def _answer_topic(self, call: Call) -> None:
        state = self._engine.state(call.name, touch=query_flag(call.query(), "touch", True))
        fields: dict[str, object] = {
            "topic": state.topic,
            "type": state.config.type,
            "head_seq": state.head_seq,
            "earliest_seq": state.earliest_seq,
            "next_seq": state.next_seq,
            "count": state.count,
            "bytes": state.bytes,
            "config": state.config,
            "effective_priority": state.effective_priority,
            "last_write_ts": state.last_write_ts,
            "last_read_ts": state.last_read_ts,
        }
        if state.queue is not None:
            fields["queue"] = state.queue
        self._app.answer_with(call, self._engine.floor_commit(call.name), fields)

    def account(self, call: Call) -> None:
        """GET /v0/topics/:topic/account."""
        when_forwarded(self._app, call, call.name, partial(self._answer_account, call))

    def _answer_account(self, call: Call) -> None:
        query = call.query()
        account = self._engine.account(
            call.name, query_seq(query, "from_seq", 0), query_seq(query, "to_seq", U64_MAX)
        )
        self._app.answer_with(call, self._engine.floor_commit(call.name), account)

    def list_topics(self, call: Call) -> None:
        """GET /v0/topics."""
        query = call.query()
        size = page_size(query.get("page_size"))
        after = name_in_cursor(query.get("cursor"))
        states = allowed_topics(self._engine, call.key, size + 1, query.get("prefix", ""), after)
        more, states = len(states) > size, states[:size]
        engine = self._engine
        if query_flag(query, "touch", False):
            states = [engine.state(state.topic) for state in states]
        answer: dict[str, object] = {
            "topics": [
                {
                    "topic": state.topic,
                    "head_seq": state.head_seq,
                    "earliest_seq": state.earliest_seq,
                    "count": state.count,
                    "bytes": state.bytes,
                    "durable": state.config.durable,
                    "effective_priority": state.effective_priority,
                    "type": state.config.type,
                    "durability": state.config.durability,
                }
                for state in states
            ]
        }
        if more:
            answer["next_cursor"] = cursor_behind(states[-1].topic)
        floors = together([engine.floor_commit(state.topic) for state in states])
        self._app.answer_with(call, floors, answer)

    def delete_topic(self, call: Call) -> None:
        """DELETE /v0/topics/:topic."""
        shown = self._shown_routers(call)
        try:
            deleted = self._engine.delete_topic(
                call.name, if_empty=query_flag(call.query(), "if_empty", False)
            )
        except TopicNotEmpty as error:
            count = self._engine.state(call.name, touch=False).count
            raise ApiError(409, error.code, str(error), {"topic": call.name, "count": count}) from None
        self._app.topics_of_keys.deleted(call.name)
        self._app.consumers_of_keys.deleted_below(f"{call.name}/")
        for router in deleted.routers_removed:
            self._app.routers_of_keys.deleted(router)
        answer = {
            "topic": call.name,
            "deleted": deleted.deleted,
            "routers_removed": [name for name in deleted.routers_removed if shown is None or name in shown],
        }
        self._app.answer_with(call, deleted.commit, answer)

    def _shown_routers(self, call: Call) -> set[str] | None:
        """The routers at a topic that its key may know of; None: all."""
        if call.key is None or not call.key.prefixes:
            return None
        engine = self._engine
        find = partial(engine.routers, limit=engine.router_count + 1, is_shown=partial(allows_name, call.key))
        return {state.router for state in (*find(source=call.name), *find(dest=call.name))}

    # --- Records -----------------------------------------------------------------------------------------

    def append(self, call: Call) -> None:
        """POST /v0/topics/:topic."""
        request = call.exchange.request
        engine = self._app.ready_engine()
        append = decode_append(call)
        if append.config is not None:
            if not engine.has_topic(call.name):
                self._app.require(call, Scope.WRITE | Scope.ADMIN)
            check_dead_letter(call.key, append.config)
        if append.idempotency_key is None and b"idempotency-key" in request.headers:
            append.idempotency_key = _header_text("Idempotency-Key", request.headers[b"idempotency-key"])
        appended = append_batch(self._app, call.key, call.name, append)
        appended.commit.on_done(_AppendAnswer(self._app, call, appended))

    def delete_records(self, call: Call) -> None:
        """POST /v0/topics/:topic/delete."""
        body = decode(call, DeleteBody)
        check_counts(body)
        steps = self._engine.delete_steps(
            call.name, before_seq=body.before_seq, match=body.match, dry_run=body.dry_run
        )
        StepCall(self._app, call, steps, partial(self._answer_deleted, call)).run()

    def _answer_deleted(self, call: Call, deleted: RecordsDeleted) -> None:
        answer = {
            "topic": call.name,
            "deleted": deleted.deleted,
            "earliest_seq": deleted.earliest_seq,
            "head_seq": deleted.head_seq,
            "count": deleted.count,
            "bytes": deleted.bytes,
        }
        self._app.answer_with(call, deleted.commit, answer)

    # --- Reading -----------------------------------------------------------------------------------------

    def diff(self, call: Call) -> None:
        """POST /v0/topics/:topic/diff."""
        body = decode(call, DiffBody, if_empty=DiffBody())
        check_counts(body)
        selection = filter_of(body.filter)
        if body.from_time_ms is not None and b'"from_seq"' in json_names(call.request.body):
            raise invalid("from_seq and from_time_ms together; send one of them")
        when_forwarded(self._app, call, call.name, LongPoll(self._app, call, body, selection).read)


def allowed_topics(
    engine: Engine, key: Key | None, limit: int, prefix: str = "", after: str | None = None
) -> list[TopicState]:
    """The first topics by name that a key may see."""
    prefixes = {prefix}
    if key is not None and key.prefixes:
        # Asked for one by one: to look through all topics for those of a key could take very long.
        allowed = [known.decode("utf-8", "surrogateescape") for known in key.prefixes]
        narrower = {known for known in allowed if known.startswith(prefix)}
        prefixes = {prefix} if any(map(prefix.startswith, allowed)) else narrower
    found = {state.topic: state for each in prefixes for state in engine.topics(each, after, limit)}
    return [found[name] for name in sorted(found)][:limit]


class _AppendAnswer:
    """The answer to an append; its commit calls it."""

    __slots__ = ("_app", "_appended", "_call")

    def __init__(self, app: App, call: Call, appended: Appended) -> None:
        self._app = app
        self._call = call
        self._appended = appended

    def __call__(self, commit: Commit) -> None:
        app, call, appended = self._app, self._call, self._appended
        try:
            if commit.error is not None:
                raise commit.error
            has_seqs = query_flag(call.query(), "return_seqs", True)
            body = b"{%b}" % appended_fields(
                app, call.name, appended, SEQS_LISTED if has_seqs else SEQS_OMITTED, call.started_ns
            )
            app.answer(call, body, 201 if appended.created else 200)
        except Exception as error:
            app.fail(call, error)


def check_dead_letter(key: Key | None, config: TopicConfig | None) -> None:
    """Refuse a dead-letter topic that the key may not use: jobs that fail would be written there."""
    name = None if config is None else config.dead_letter
    if name is not None and not allows_name(key, name):
        raise ApiError(403, "forbidden", "this key may not use the dead-letter topic", {"topic": name})


def append_batch(app: App, key: Key | None, name: str, append: Append) -> Appended:
    """Append what a request carries; raises the error for its client."""
    engine = app.ready_engine()
    if append.config is not None:
        check_counts(append.config)
    _check_room(app, key, name, append.config)
    try:
        appended = engine.append(
            name,
            append.records,
            node=append.node,
            idempotency_key=append.idempotency_key,
            create=append.create,
            config=append.config,
            disable_backpressure=append.disable_backpressure,
            jobs=append.jobs,
            quota=None if key is None else _quota_of(app, key),
        )
    except BatchTooLarge as error:
        detail = {"records": len(append.records), "max": MAX_RECORDS_PER_APPEND}
        raise ApiError(400, error.code, str(error), detail) from None
    if appended.created:
        app.topics_of_keys.created(key, name)
        _count_dead_letter(app, key, append.config)
    return appended


def _dead_letter_of(config: TopicConfig | None) -> str | None:
    """The topic that failed jobs go to, which is created for the first of them."""
    return None if config is None or config.type is not TopicType.QUEUE else config.dead_letter


def _check_room(app: App, key: Key | None, name: str, config: TopicConfig | None) -> None:
    """Refuse a topic, and the dead-letter topic that it names, beyond what the key may create."""
    engine, owned, dead_letter = app.ready_engine(), app.topics_of_keys, _dead_letter_of(config)
    names = (name,) if dead_letter is None else (name, dead_letter)
    owned.check(key, names, lambda each: engine.has_topic(each) or owned.counts(each))


def _count_dead_letter(app: App, key: Key | None, config: TopicConfig | None) -> None:
    """A dead-letter topic counts for the key that names it first, as no request creates it."""
    dead_letter = _dead_letter_of(config)
    if dead_letter is not None and not app.ready_engine().has_topic(dead_letter):
        app.topics_of_keys.created(key, dead_letter)


def _quota_of(app: App, key: Key) -> ByteQuota | None:
    """How much the topics that a key has created may hold together."""
    limit = app.settings.max_total_bytes_per_key if key.max_bytes is None else key.max_bytes
    return ByteQuota(app.topics_of_keys.names_of(key), limit) if limit else None


def appended_fields(app: App, name: str, appended: Appended, seqs: int, started_ns: int) -> bytes:
    """The fields of the answer to an append, without braces; `seqs` is one of the `SEQS_` of the renderer."""
    total_ns = app.now_ns() - started_ns
    written_ns, synced_ns = (0, 0) if appended.deduped else app.ready_engine().commit_times_ns(name)
    if appended.seqs:
        return _fields_with_hits(name, appended, seqs, total_ns, written_ns, synced_ns)
    return render_fields(
        name,
        appended.first_seq,
        appended.last_seq,
        seqs,
        appended.head_seq,
        appended.created,
        appended.deduped,
        total_ns,
        written_ns,
        synced_ns,
        app.throttle_field(total_ns / 1e6 if synced_ns else 0.0),
    )


def _fields_with_hits(
    name: str, appended: Appended, seqs: int, total_ns: int, written_ns: int, synced_ns: int
) -> bytes:
    """The same for an append of jobs with unique keys: some of them, or all, were there already."""
    fields: dict[str, object] = {"topic": name}
    if appended.count:
        fields |= {"first_seq": appended.first_seq, "last_seq": appended.last_seq}
    if seqs != SEQS_OMITTED:
        fields["seqs"] = appended.seqs if seqs == SEQS_LISTED else None
    fields |= {
        "head_seq": appended.head_seq,
        "count": appended.count,
        "unique_hits": len(appended.seqs) - appended.count,
        "created": appended.created,
        "deduped": appended.deduped,
        "performance": {
            "server_total_ms": total_ns // 1000 / 1000,
            "wal_append_ms": written_ns // 1000 / 1000,
            "fsync_ms": synced_ns // 1000 / 1000,
        },
    }
    return _json.encode(fields)[1:-1]


def _header_text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid(f"the header {name} is not UTF-8") from None
