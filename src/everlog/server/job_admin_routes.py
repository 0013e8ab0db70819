"""The routes of operators of job queues: look at jobs, cancel, retry, pause, purge, redrive.

Owns what these answers look like; the engine decides what is in them.
"""

from __future__ import annotations

from functools import partial
from typing import Final, get_args

import msgspec

from everlog.errors import BatchTooLarge, JobNotFound
from everlog.job_types import JobState
from everlog.server.app import App, Call, Route
from everlog.server.auth import Scope, allows_name
from everlog.server.bodies import (
    JobsBody,
    PauseBody,
    PurgeBody,
    RedriveBody,
    check_counts,
    decode,
    filter_of,
)
from everlog.server.errors import ApiError, invalid
from everlog.server.pages import cursor_behind, name_in_cursor, page_size
from everlog.server.router_wait import when_forwarded
from everlog.server.step_calls import StepCall
from everlog.topics.filters import compile_filter
from everlog.topics.jobs.claims import SEQS_MAX
from everlog.topics.jobs.job_admin import JobAdmin
from everlog.topics.jobs.job_changes import JobsChanged
from everlog.topics.jobs.job_states import JobPage, Selection, StateName
from everlog.topics.jobs.redrive import Redrive, Redrove
from everlog.topics.jobs.steps import Steps

_json: Final = msgspec.json.Encoder()


class JobAdminRoutes:
    """Handlers of everything below /v0/topics/:topic/jobs, and of pause, resume, purge and redrive."""

    def __init__(self, app: App) -> None:
        self._app = app
        jobs = "/v0/topics/:name/jobs"
        admin, delete = Scope.ADMIN, Scope.DELETE
        app.add("GET", jobs, Route(Scope.READ, self.list_jobs))
        app.add("GET", f"{jobs}/:item", Route(Scope.READ, self.get_job))
        app.add("POST", f"{jobs}/cancel", Route(admin, self.cancel, or_scope=delete))
        app.add("POST", f"{jobs}/retry", Route(admin, self.retry))
        app.add("POST", "/v0/topics/:name/pause", Route(admin, partial(self.pause, is_paused=True)))
        app.add("POST", "/v0/topics/:name/resume", Route(admin, partial(self.pause, is_paused=False)))
        app.add("POST", "/v0/topics/:name/purge", Route(admin, self.purge, or_scope=delete))
        app.add("POST", "/v0/topics/:name/redrive", Route(admin, self.redrive))

    @property
    def _jobs(self) -> JobAdmin:
        return self._app.ready_engine().jobs

    # --- Looking -----------------------------------------------------------------------------------------

    def list_jobs(self, call: Call) -> None:
        """GET /v0/topics/:topic/jobs."""
        when_forwarded(self._app, call, call.name, partial(self._list, call))

    def _list(self, call: Call) -> None:
        query = call.query()
        state = query.get("state") or None
        if state is not None and state not in get_args(StateName):
            raise invalid(f"state is {state!r}; it must be one of {', '.join(get_args(StateName))}")
        include = query.get("include", "")
        if include not in ("", "data"):
            raise invalid(f"include is {include!r}; it must be data, or absent")
        text = query.get("filter")
        selection = Selection(
            state,  # type: ignore[arg-type]
            query.get("tag"),
            query.get("key"),
            None if not text else compile_filter(text),
        )
        steps = self._jobs.page(
            call.name,
            selection,
            after_seq=_seq_of(name_in_cursor(query.get("cursor"))),
            limit=page_size(query.get("limit")),
            with_data=include == "data",
        )
        StepCall(self._app, call, steps, partial(self._answer_page, call)).run()

    def _answer_page(self, call: Call, page: JobPage) -> None:
        fields: dict[str, object] = {"topic": call.name, "jobs": page.jobs, "counts": page.counts}
        if page.after_seq:
            fields["next_cursor"] = cursor_behind(str(page.after_seq))
        self._answer(call, fields)

    def get_job(self, call: Call) -> None:
        """GET /v0/topics/:topic/jobs/:seq."""
        when_forwarded(self._app, call, call.name, partial(self._show, call))

    def _show(self, call: Call) -> None:
        if not (call.item.isascii() and call.item.isdigit() and len(call.item) <= 20):
            self._jobs.counts(call.name)  # raises if there is no such job queue
            raise JobNotFound(f"{call.item!r} is not the seq of a job", call.name)
        steps = self._jobs.show(call.name, int(call.item))
        StepCall(self._app, call, steps, partial(self._answer_job, call)).run()

    def _answer_job(self, call: Call, job: JobState) -> None:
        fields = b"{%b,%b" % (_json.encode({"topic": call.name})[1:-1], _json.encode(job)[1:])
        self._answer(call, msgspec.Raw(fields))

    def _answer(self, call: Call, fields: object) -> None:
        """Answer when what is shown is certain."""
        self._app.answer_with(call, self._app.ready_engine().floor_commit(call.name), fields)

    # --- Changing ----------------------------------------------------------------------------------------

    def cancel(self, call: Call) -> None:
        """POST /v0/topics/:topic/jobs/cancel."""
        body = decode(call, JobsBody)
        self._change(call, _checked(body, partial(self._jobs.cancel, call.name)), "cancelled")

    def retry(self, call: Call) -> None:
        """POST /v0/topics/:topic/jobs/retry."""
        body = decode(call, JobsBody)
        self._change(call, _checked(body, partial(self._jobs.retry, call.name)), "retried")

    def purge(self, call: Call) -> None:
        """POST /v0/topics/:topic/purge."""
        body = decode(call, PurgeBody)
        chosen = filter_of(body.filter)
        steps = self._jobs.purge(call.name, chosen, all_jobs=body.all, dry_run=body.dry_run)
        self._change(call, steps, "purged")

    def _change(self, call: Call, steps: Steps[JobsChanged], verb: str) -> None:
        def answer(changed: JobsChanged) -> None:
            self._app.answer_with(call, changed.commit, {"topic": call.name, verb: changed.changed})

        StepCall(self._app, call, steps, answer).run()

    def pause(self, call: Call, *, is_paused: bool) -> None:
        """POST /v0/topics/:topic/pause and resume."""
        decode(call, PauseBody, if_empty=PauseBody())
        put = self._jobs.pause(call.name, is_paused)
        self._app.answer_with(call, put.commit, {"topic": call.name, "paused": is_paused})

    def redrive(self, call: Call) -> None:
        """POST /v0/topics/:topic/redrive."""
        body = decode(call, RedriveBody, if_empty=RedriveBody())
        check_counts(body)
        allows = partial(allows_name, call.key)
        if body.to is not None and not allows(body.to):
            raise ApiError(403, "forbidden", "this key may not use the topic of `to`", {"topic": body.to})
        wanted = Redrive(body.to, filter_of(body.filter), body.limit, body.dry_run, allows)
        steps = self._jobs.redrive(call.name, wanted)

        def answer(redrove: Redrove) -> None:
            self._answer(call, {"topic": call.name, **redrove._asdict()})

        StepCall(self._app, call, steps, answer).run()


def _checked(body: JobsBody, begin: partial[Steps[JobsChanged]]) -> Steps[JobsChanged]:
    try:
        return begin(body.seqs, filter_of(body.filter))
    except BatchTooLarge as error:
        detail = {"seqs": len(body.seqs or ()), "max": SEQS_MAX}
        raise ApiError(400, error.code, str(error), detail) from None


def _seq_of(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 20):
        raise invalid("the cursor is not one that this server gave for jobs")
    return int(cursor)
