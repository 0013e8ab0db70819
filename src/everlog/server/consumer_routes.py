"""The routes about consumers of topics.

Owns what these answers look like; the engine decides what is in them.
"""

from __future__ import annotations

from functools import partial

import msgspec

from everlog.api_types import ConsumerState
from everlog.server.app import App, Call, Route
from everlog.server.auth import Scope, allows_name
from everlog.server.bodies import (
    ConsumerAcquireBody,
    ConsumerBody,
    ConsumerCommitBody,
    ConsumerReadBody,
    ConsumerResetBody,
    DiffBody,
    check_counts,
    decode,
    filter_of,
    start_of,
)
from everlog.server.errors import invalid
from everlog.server.long_poll import LongPoll, render_diff
from everlog.server.pages import cursor_behind, name_in_cursor, page_size
from everlog.server.router_wait import when_forwarded
from everlog.topics import Commit, Diff
from everlog.topics.commits import together
from everlog.topics.delivery.consumers import Consumers

_json = msgspec.json.Encoder()


class ConsumerRoutes:
    """Handlers of everything below /v0/topics/:topic/consumers."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._polls: dict[tuple[str, str], dict[ConsumerPoll, None]] = {}
        """Reads that wait, by topic and consumer."""
        one = "/v0/topics/:name/consumers/:item"
        app.add("GET", "/v0/consumers", Route(Scope.READ, self.list_all))
        app.add("GET", "/v0/topics/:name/consumers", Route(Scope.READ, self.list_consumers))
        app.add("PUT", one, Route(Scope.ADMIN, self.put_consumer))
        app.add("GET", one, Route(Scope.READ, self.get_consumer))
        app.add("DELETE", one, Route(Scope.ADMIN, self.delete_consumer, or_scope=Scope.DELETE))
        app.add("POST", f"{one}/read", Route(Scope.READ, self.read))
        app.add("POST", f"{one}/commit", Route(Scope.WRITE, self.commit, needs_poll=False))
        app.add("POST", f"{one}/acquire", Route(Scope.WRITE, self.acquire))
        app.add("POST", f"{one}/reset", Route(Scope.ADMIN, self.reset))

    @property
    def _consumers(self) -> Consumers:
        return self._app.ready_engine().consumers

    def put_consumer(self, call: Call) -> None:
        """PUT /v0/topics/:topic/consumers/:consumer."""
        body = decode(call, ConsumerBody, if_empty=ConsumerBody())
        check_counts(body)
        consumers, owned = self._consumers, self._app.consumers_of_keys
        owned.check(call.key, (call.item,), partial(consumers.has, call.name))
        selection = filter_of(body.filter)
        put = consumers.put(
            call.name,
            call.item,
            start_of(body.start),
            hold=body.hold,
            hold_max_ms=body.hold_max_ms,
            filter="null" if selection is None else selection.text,
            node=() if body.node is None else body.node,
        )
        if put.created:
            owned.created(call.key, f"{call.name}/{call.item}")
        self._app.answer_with(call, put.commit, put.state, 201 if put.created else 200)

    def get_consumer(self, call: Call) -> None:
        """GET /v0/topics/:topic/consumers/:consumer."""
        when_forwarded(self._app, call, call.name, partial(self._answer_state, call))

    def _answer_state(self, call: Call) -> None:
        shown = self._consumers.show(call.name, call.item)
        self._app.answer_with(call, shown.commit, shown.state)

    def list_consumers(self, call: Call) -> None:
        """GET /v0/topics/:topic/consumers."""
        when_forwarded(self._app, call, call.name, partial(self._answer_list, call))

    def _answer_list(self, call: Call) -> None:
        query = call.query()
        size = page_size(query.get("page_size"))
        states, commit = self._consumers.page(call.name, name_in_cursor(query.get("cursor")), size + 1)
        answer: dict[str, object] = {"consumers": states[:size]}
        if len(states) > size:
            answer["next_cursor"] = cursor_behind(states[size - 1].name)
        self._app.answer_with(call, commit, answer)

    def list_all(self, call: Call) -> None:
        """GET /v0/consumers."""
        query = call.query()
        states, place, commit = self._consumers.everywhere(
            _place_in(query.get("cursor")),
            page_size(query.get("page_size")),
            partial(allows_name, call.key),
        )
        answer: dict[str, object] = {"consumers": states}
        if place is not None:
            answer["next_cursor"] = cursor_behind(f"{place[0]}/{place[1]}")
        self._app.answer_with(call, commit, answer)

    def delete_consumer(self, call: Call) -> None:
        """DELETE /v0/topics/:topic/consumers/:consumer."""
        deleted = self._consumers.delete(call.name, call.item)
        self._app.consumers_of_keys.deleted(f"{call.name}/{call.item}")
        self._wake(call)
        answer = {"topic": call.name, "name": call.item, "deleted": deleted.deleted}
        self._app.answer_with(call, deleted.commit, answer)

    def read(self, call: Call) -> None:
        """POST /v0/topics/:topic/consumers/:consumer/read."""
        body = decode(call, ConsumerReadBody, if_empty=ConsumerReadBody())
        check_counts(body)
        commit: Commit | None = None
        if body.commit is not None:
            self._app.require(call, Scope.READ | Scope.WRITE)
            commit = self._consumers.commit(call.name, call.item, body.commit, body.owner_epoch).commit
        when_forwarded(
            self._app, call, call.name, ConsumerPoll(self._app, call, body, commit, self._polls).read
        )

    def _wake(self, call: Call) -> None:
        """Let the reads of a consumer look again: it is elsewhere, another owner's, or gone."""
        for poll in tuple(self._polls.get((call.name, call.item), ())):
            poll.wake()

    def commit(self, call: Call) -> None:
        """POST /v0/topics/:topic/consumers/:consumer/commit."""
        body = decode(call, ConsumerCommitBody)
        check_counts(body)
        changed = self._consumers.commit(call.name, call.item, body.seq, body.owner_epoch)
        self._app.answer_with(call, changed.commit, changed.state)

    def acquire(self, call: Call) -> None:
        """POST /v0/topics/:topic/consumers/:consumer/acquire."""
        body = decode(call, ConsumerAcquireBody)
        check_counts(body)
        acquired = self._consumers.acquire(call.name, call.item, body.owner, body.ttl_ms)
        self._wake(call)
        answer = {"owner_epoch": acquired.owner_epoch, "expires_ts": acquired.expires_ts}
        self._app.answer_with(call, acquired.commit, answer)

    def reset(self, call: Call) -> None:
        """POST /v0/topics/:topic/consumers/:consumer/reset."""
        body = decode(call, ConsumerResetBody)
        reset = self._consumers.reset(call.name, call.item, start_of(body.to), dry_run=body.dry_run)
        if not body.dry_run:
            self._wake(call)
        answer = {
            "cursor_before": reset.cursor_before,
            "cursor": reset.cursor,
            "records": reset.records,
        }
        self._app.answer_with(call, reset.commit, answer)


def _place_in(cursor: str | None) -> tuple[int, str] | None:
    """Topic and consumer behind which a page begins, None for the first page."""
    text = name_in_cursor(cursor)
    if text is None:
        return None
    topic_id, _, name = text.partition("/")
    if not (topic_id.isascii() and topic_id.isdigit()):
        raise invalid(f"the cursor {cursor!r} is not one that this server gave")
    return int(topic_id), name


class ConsumerPoll(LongPoll):
    """One read by a consumer: from its cursor, with its node and filter, as long as its owner may."""

    def __init__(
        self,
        app: App,
        call: Call,
        body: ConsumerReadBody,
        commit: Commit | None,
        polls: dict[tuple[str, str], dict[ConsumerPoll, None]],
    ) -> None:
        diff = DiffBody(
            limit=body.limit,
            wait_ms=body.wait_ms,
            max_batch_bytes=body.max_bytes,
            include_tags=body.include_tags,
            include_meta=body.include_meta,
        )
        super().__init__(app, call, diff)
        self._owner_epoch = body.owner_epoch
        self._commit = commit
        self._cursor = -1
        self._polls = polls

    def read(self) -> None:
        """Look where the consumer is now, then read."""
        consumers, call = self._app.ready_engine().consumers, self._call
        reading = consumers.reading(call.name, call.item, self._owner_epoch)
        if reading.cursor != self._cursor:
            self._cursor = self._from_seq = reading.cursor
            self._earlier = None
        self._body.node, self._filter = list(reading.nodes), reading.filter
        super().read()

    def wake(self) -> None:
        """Look again now."""
        self._woken()

    def _park(self) -> None:
        self._polls.setdefault((self._call.name, self._call.item), {})[self] = None
        super()._park()

    def _forget(self) -> None:
        name = self._call.name, self._call.item
        waiting = self._polls.get(name, {})
        waiting.pop(self, None)
        if not waiting:
            self._polls.pop(name, None)
        super()._forget()

    def _answer_when(self, diff: Diff) -> None:
        shown = self._app.ready_engine().consumers.show(self._call.name, self._call.item)
        commits = [commit for commit in (diff.commit, self._commit, shown.commit) if commit is not None]
        self._app.answer_when(self._call, together(commits), partial(self._answer, diff, shown.state))

    def _answer(self, diff: Diff, state: ConsumerState) -> tuple[bytes, int]:
        return render_diff(self._app, self._call, diff, b',"consumer":%b' % _json.encode(state)), 200
