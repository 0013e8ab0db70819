"""The routes about schedules.

Owns what these answers look like; the engine decides what is in them.
"""

from __future__ import annotations

from functools import partial

import msgspec

from everlog.job_types import JobMembers
from everlog.server.app import App, Call, Route
from everlog.server.auth import Scope, allows_name
from everlog.server.bodies import RecordBody, ScheduleBody, decode
from everlog.server.errors import ApiError
from everlog.server.pages import cursor_behind, name_in_cursor, page_size
from everlog.topics import NewRecord
from everlog.topics.jobs.options import has_members
from everlog.topics.jobs.schedules import ScheduleChange, Schedules


class ScheduleRoutes:
    """Handlers of everything below /v0/schedules."""

    def __init__(self, app: App) -> None:
        self._app = app
        one = "/v0/schedules/:name"
        app.add("GET", "/v0/schedules", Route(Scope.READ, self.list_schedules))
        app.add("PUT", one, Route(Scope.ADMIN, self.put_schedule))
        app.add("GET", one, Route(Scope.READ, self.get_schedule))
        app.add("DELETE", one, Route(Scope.ADMIN, self.delete_schedule, or_scope=Scope.DELETE))

    @property
    def _schedules(self) -> Schedules:
        return self._app.ready_engine().schedules

    def put_schedule(self, call: Call) -> None:
        """PUT /v0/schedules/:schedule."""
        body = decode(call, ScheduleBody)
        if not allows_name(call.key, body.topic):
            raise ApiError(403, "forbidden", "this key may not use the topic", {"topic": body.topic})
        schedules, owned = self._schedules, self._app.schedules_of_keys
        if schedules.has(call.name):
            _check_topic(call, schedules.show(call.name))
        owned.check(call.key, (call.name,), schedules.has)
        put = schedules.put(
            call.name,
            body.topic,
            body.cron,
            _record_of(body.record),
            _members_of(body.record),
            timezone=body.timezone,
            catch_up=body.catch_up,
            paused=body.paused,
        )
        if put.is_new:
            owned.created(call.key, call.name)
        self._answer(call, put, 201 if put.is_new else 200)

    def get_schedule(self, call: Call) -> None:
        """GET /v0/schedules/:schedule."""
        shown = self._schedules.show(call.name)
        _check_topic(call, shown)
        self._answer(call, shown)

    def _answer(self, call: Call, change: ScheduleChange, status: int = 200) -> None:
        self._app.answer_with(call, change.commit, change.state, status)

    def list_schedules(self, call: Call) -> None:
        """GET /v0/schedules."""
        query = call.query()
        size = page_size(query.get("page_size"))
        after = name_in_cursor(query.get("cursor"))
        is_shown = partial(allows_name, call.key)
        states = self._schedules.page(query.get("prefix", ""), after, size + 1, is_shown)
        answer: dict[str, object] = {"schedules": states[:size]}
        if len(states) > size:
            answer["next_cursor"] = cursor_behind(states[size - 1].name)
        self._app.answer(call, self._app.rendered(call, answer))

    def delete_schedule(self, call: Call) -> None:
        """DELETE /v0/schedules/:schedule."""
        if self._schedules.has(call.name):
            _check_topic(call, self._schedules.show(call.name))
        deleted = self._schedules.delete(call.name)
        self._app.schedules_of_keys.deleted(call.name)
        self._app.answer_with(call, deleted.commit, {"name": call.name, "deleted": deleted.is_new})


def _check_topic(call: Call, shown: ScheduleChange) -> None:
    """Refuse a schedule that writes where the key may not, without naming that topic."""
    if shown.state is not None and not allows_name(call.key, shown.state.topic):
        message = f"schedule {call.name!r} writes to a topic that this key may not use"
        raise ApiError(403, "forbidden", message, {"name": call.name})


def _record_of(body: RecordBody) -> NewRecord:
    meta: msgspec.Raw | None = body.meta  # None if it is absent
    text = b"null" if meta is None else msgspec.json.format(bytes(meta), indent=-1)
    return NewRecord(bytes(body.data), body.tag, body.node, None if text == b"null" else text)


def _members_of(body: RecordBody) -> JobMembers | None:
    if not has_members(body):
        return None
    return JobMembers(**{name: getattr(body, name) for name in JobMembers.__struct_fields__})
