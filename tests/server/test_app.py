"""The application without sockets: slots of keys, commits that come late or fail, the turn, draining."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import (
    BatchTooLarge,
    Closed,
    Corrupt,
    EverlogError,
    InvalidRecord,
    InvalidRequest,
    LimitReached,
    NotReady,
    OutcomeUnknown,
    ReadOnly,
    RecordTooLarge,
    StorageFailed,
    TopicDamaged,
    TopicFull,
    TopicIncompatible,
    TopicNotEmpty,
    TopicNotFound,
)
from everlog.server.app import App, Call
from everlog.server.errors import ApiError, from_engine
from everlog.server.http import Headers, Request, Target
from everlog.server.logs import configure_logging
from everlog.server.probe_routes import ProbeRoutes
from everlog.server.serve import TopicsServer, announce
from everlog.server.topic_routes import TopicRoutes
from everlog.topics import Commit, Engine, TopicConfig
from everlog.topics.commits import COMMITTED, together
from tests.support.http_cases import settings_of

APPEND = b'{"records":[{"data":1}]}'


class FakeExchange:
    """An exchange whose client is the test."""

    def __init__(self, method: str, path: str, body: bytes = b"", token: str | None = None) -> None:
        headers = {b"content-type": b"application/json"}
        if token is not None:
            headers[b"authorization"] = b"Bearer " + token.encode()
        bare, _, query = path.encode().partition(b"?")
        self.request = Request(Target(method, bare, query), headers, "test")
        self.request.body = body
        self.on_gone: Callable[[], None] | None = None
        self.is_gone = False
        self.status = 0
        self.json: Any = None

    def respond(
        self, status: int, body: bytes, content_type: bytes = b"application/json", headers: Headers = ()
    ) -> None:
        if self.is_gone:
            return
        assert self.status == 0, "answered twice"
        self.status = status
        self.json = json.loads(body) if content_type == b"application/json" and body else None

    def go_away(self) -> None:
        self.is_gone = True
        if self.on_gone is not None and self.status == 0:
            self.on_gone()


class AppHarness:
    """An application with an engine, on the running loop."""

    def __init__(self, folder: Path | None, **settings: Any) -> None:
        self.app = App(settings_of(**settings), asyncio.get_running_loop(), time.monotonic_ns)
        TopicRoutes(self.app)
        ProbeRoutes(self.app, dict)
        self.engine = Engine.open(folder, self.app.settings.engine_settings(), wake=self.app.wake)
        self.app.engine = self.engine

    def ask(self, method: str, path: str, body: bytes = b"", token: str | None = None) -> FakeExchange:
        exchange = FakeExchange(method, path, body, token)
        self.app.handle(exchange)  # type: ignore[arg-type]
        return exchange

    async def answered(self, exchange: FakeExchange) -> FakeExchange:
        while exchange.status == 0:
            await asyncio.sleep(0.001)
        return exchange

    async def asked(
        self, method: str, path: str, body: bytes = b"", token: str | None = None
    ) -> FakeExchange:
        return await self.answered(self.ask(method, path, body, token))

    @property
    def in_flight(self) -> int:
        return sum(self.app._in_flight.values())


def play(
    scenario: Callable[[AppHarness], Awaitable[None]], folder: Path | None = None, **settings: Any
) -> None:
    """Run a scenario, in memory unless it has a folder; whatever the loop complains about fails the test."""
    complaints: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        harness = AppHarness(folder, **settings)
        try:
            await asyncio.wait_for(scenario(harness), 20)
        finally:
            harness.app.stop_turning()
            harness.engine.close()

    asyncio.run(run())
    assert complaints == []


# --- Slots of keys ---------------------------------------------------------------------------------------


def test_a_client_that_leaves_frees_its_slot_once_when_its_write_is_over(tmp_path: Path) -> None:
    async def scenario(harness: AppHarness) -> None:
        await harness.asked("PUT", "/v0/topics/t", b'{"durability":"fsync"}', "k")
        exchange = harness.ask("POST", "/v0/topics/t", APPEND, "k")
        assert (exchange.status, harness.in_flight) == (0, 1)
        exchange.go_away()
        assert harness.in_flight == 1
        while harness.engine.state("t").head_seq == 0:
            await asyncio.sleep(0.001)
        assert (exchange.status, harness.in_flight) == (0, 0)

    play(scenario, tmp_path, keys="k", max_inflight_per_key=1)


def test_a_parked_reader_that_leaves_is_forgotten_and_frees_its_slot() -> None:
    async def scenario(harness: AppHarness) -> None:
        await harness.asked("PUT", "/v0/topics/t", b"{}", "k")
        exchange = harness.ask("POST", "/v0/topics/t/diff", b'{"wait_ms":20000}', "k")
        assert (harness.in_flight, len(harness.app.parked)) == (1, 1)
        exchange.go_away()
        assert (harness.in_flight, len(harness.app.parked)) == (0, 0)
        await harness.asked("POST", "/v0/topics/t", APPEND, "k")
        assert (exchange.status, harness.in_flight) == (0, 0)

    play(scenario, keys="k")


def test_a_failing_handler_frees_its_slot_and_is_500(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: AppHarness) -> None:
        def broken(_: Call) -> None:
            raise LookupError("on purpose")

        harness.app.routes["GET", "/v0/topics"].handler = broken
        exchange = await harness.asked("GET", "/v0/topics", b"", "k")
        assert (exchange.status, exchange.json["error"]["code"]) == (500, "internal")
        assert "on purpose" not in exchange.json["error"]["message"]
        assert harness.in_flight == 0

    play(scenario, keys="k")
    assert "on purpose" in caplog.text


# --- Commits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (StorageFailed("disk full"), (500, "internal")),
        (OutcomeUnknown("a sync failed"), (500, "outcome_unknown")),
        (ReadOnly("a sync failed before"), (503, "storage_failed")),
    ],
)
def test_a_write_that_could_not_be_kept_is_refused(error: StorageFailed, answer: tuple[int, str]) -> None:
    async def scenario(harness: AppHarness) -> None:
        exchange = FakeExchange("POST", "/v0/topics/t", APPEND)
        commit = Commit()
        harness.app.answer_when(Call(exchange, 0), commit, lambda: (b"{}", 200))  # type: ignore[arg-type]
        assert exchange.status == 0
        commit.finish(error)
        assert (exchange.status, exchange.json["error"]["code"]) == answer

    play(scenario)


def test_who_finishes_a_commit_never_hears_of_an_answer_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: AppHarness) -> None:
        first, second = FakeExchange("GET", "/"), FakeExchange("GET", "/")
        commit = Commit()

        def broken() -> tuple[bytes, int]:
            raise LookupError("on purpose")

        harness.app.answer_when(Call(first, 0), commit, broken)  # type: ignore[arg-type]
        harness.app.answer_when(Call(second, 0), commit, lambda: (b"{}", 201))  # type: ignore[arg-type]
        commit.finish()
        assert (first.status, second.status) == (500, 201)

    play(scenario)
    assert "on purpose" in caplog.text


def test_a_server_that_stops_with_a_write_pending_still_closes_its_engine(tmp_path: Path) -> None:
    async def scenario(harness: AppHarness) -> None:
        await harness.asked("PUT", "/v0/topics/t", b'{"durability":"fsync"}')
        exchange = harness.ask("POST", "/v0/topics/t", APPEND)
        exchange.go_away()

    play(scenario, tmp_path)
    with Engine.open(tmp_path) as engine:
        assert engine.state("t").head_seq == 1
    assert len(list((tmp_path / "meta").glob("snapshot-*"))) == 1


def test_several_commits_together_are_done_when_all_are() -> None:
    first, second = Commit(), Commit()
    whole = together([COMMITTED, first, second, COMMITTED])
    progress = []
    for commit in (first, second):
        progress.append(whole.done)
        commit.finish()
    assert [*progress, whole.done] == [False, False, True]
    assert whole.error is None
    assert together([]).done
    assert together([COMMITTED]).done


def test_several_commits_together_fail_with_the_first_that_fails() -> None:
    first, second = Commit(), Commit()
    whole = together([first, second])
    second.finish(StorageFailed("disk full"))
    assert isinstance(whole.error, StorageFailed)
    first.finish()
    assert isinstance(whole.error, StorageFailed)
    assert isinstance(together([second]).error, StorageFailed)


def test_a_list_waits_until_the_evictions_it_shows_are_kept(tmp_path: Path) -> None:
    async def scenario(harness: AppHarness) -> None:
        await harness.asked("PUT", "/v0/topics/t", b'{"durability":"fsync"}')
        await harness.asked("POST", "/v0/topics/t", APPEND)
        while harness.engine._core.now_ms() <= (harness.engine.state("t").last_write_ts or 0) + 2:
            await asyncio.sleep(0.001)
        # The time to live is set behind the log's back, so that the list is the first to notice.
        harness.engine._core.topics["t"].config = TopicConfig(ttl_ms=1).resolved("t")
        exchange = harness.ask("GET", "/v0/topics")
        assert exchange.status == 0
        await harness.answered(exchange)
        assert exchange.json["topics"][0]["count"] == 0

    play(scenario, tmp_path)


# --- The turn --------------------------------------------------------------------------------------------


def test_all_writes_of_one_turn_are_written_together(tmp_path: Path) -> None:
    async def scenario(harness: AppHarness) -> None:
        await harness.asked("PUT", "/v0/topics/t", b'{"durability":"memory"}')
        before = harness.engine.counts().wal.batches
        exchanges = [harness.ask("POST", "/v0/topics/t", APPEND) for _ in range(10)]
        for exchange in exchanges:
            await harness.answered(exchange)
        assert harness.engine.counts().wal.batches == before + 1
        assert [exchange.json["first_seq"] for exchange in exchanges] == list(range(1, 11))

    play(scenario, tmp_path)


def test_turns_go_on_after_one_that_failed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario(harness: AppHarness) -> None:
        await harness.asked("PUT", "/v0/topics/t", b'{"durability":"fsync"}')
        poll = harness.engine.poll
        failures = iter([StorageFailed("on purpose"), LookupError("on purpose")])

        def failing(*_: object) -> None:
            for failure in failures:
                raise failure
            poll()

        monkeypatch.setattr(harness.engine, "poll", failing)
        exchange = await harness.asked("POST", "/v0/topics/t", APPEND)
        assert exchange.status == 200

    play(scenario, tmp_path)
    assert caplog.text.count("a turn of the engine failed") == 2


# --- Draining --------------------------------------------------------------------------------------------


def test_draining_answers_parked_readers_at_once_and_refuses_what_comes_after() -> None:
    async def scenario(harness: AppHarness) -> None:
        await harness.asked("PUT", "/v0/topics/t", b"{}")
        parked = [harness.ask("POST", "/v0/topics/t/diff", b'{"wait_ms":20000}') for _ in range(3)]
        harness.app.drain()
        for exchange in parked:
            assert (exchange.status, exchange.json["records"]) == (200, [])
        late = harness.ask("POST", "/v0/topics/t/diff", b'{"wait_ms":20000}')
        assert (late.status, late.json["error"]["code"]) == (503, "shutting_down")
        assert harness.ask("GET", "/v0/ready").status == 503
        assert harness.ask("GET", "/v0/health").status == 200

    play(scenario)


# --- Refusing a head -------------------------------------------------------------------------------------


def test_a_head_without_a_key_is_refused_before_its_body_is_read() -> None:
    async def scenario(harness: AppHarness) -> None:
        request = Request(Target("POST", b"/v0/topics/t", b""), {}, "test")
        refused = harness.app.check_head(request)
        assert refused is not None
        assert refused[0] == 401
        assert refused[2] == ((b"WWW-Authenticate", b"Bearer"),)
        assert json.loads(refused[1])["error"]["code"] == "unauthorized"
        request.headers[b"authorization"] = b"Bearer k"
        assert harness.app.check_head(request) is None

    play(scenario, keys="k")


# --- Errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "code", "detail"),
    [
        (InvalidRequest("x"), 400, "invalid_request", None),
        (InvalidRecord("x"), 400, "invalid_request", None),
        (BatchTooLarge("x"), 400, "batch_too_large", None),
        (RecordTooLarge("x"), 400, "record_too_large", None),
        (TopicNotFound("x"), 404, "topic_not_found", {"topic": "t"}),
        (
            TopicIncompatible("x", "log", "queue"),
            409,
            "topic_exists_incompatible",
            {"existing_type": "log", "requested_type": "queue"},
        ),
        (TopicNotEmpty("x"), 409, "topic_not_empty", {"topic": "t"}),
        (TopicFull("x"), 422, "topic_full", {"topic": "t"}),
        (LimitReached("x", "max_topics", 5), 429, "throttled", {"limit": "max_topics", "max": 5}),
        (StorageFailed("x"), 500, "internal", None),
        (ReadOnly("x"), 503, "storage_failed", None),
        (OutcomeUnknown("x"), 500, "outcome_unknown", None),
        (Corrupt("x"), 500, "internal", None),
        (NotReady("x"), 503, "not_ready", {"topic": "t"}),
        (TopicDamaged("x"), 503, "topic_damaged", {"topic": "t"}),
        (Closed("x"), 503, "shutting_down", None),
    ],
)
def test_each_error_of_the_engine_has_its_status_and_code(
    error: EverlogError, status: int, code: str, detail: dict[str, object] | None
) -> None:
    told = from_engine(error, "t")
    assert (told.status, told.code, told.detail) == (status, code, detail)
    assert bool(told.headers) == (status in (429, 503))


def test_a_message_is_cut_to_a_length_that_is_safe_to_send() -> None:
    body = json.loads(ApiError(400, "invalid_request", "é" * 1_000_000).body())
    assert 0 < len(body["error"]["message"]) <= 1000


# --- Log lines -------------------------------------------------------------------------------------------


def test_log_lines_can_be_json_objects(tmp_path: Path) -> None:
    logger = logging.getLogger("everlog")
    before = (logger.handlers, logger.level, logger.propagate)
    path = tmp_path / "log"
    try:
        with path.open("w") as stream:
            configure_logging("info", "json", stream)
            logging.getLogger("everlog.server").info('said "%s"\n', "é")
            logging.getLogger("everlog.server").debug("not shown")
            try:
                raise LookupError("on purpose")
            except LookupError:
                logging.getLogger("everlog.server").exception("failed")
    finally:
        logger.handlers, logger.level, logger.propagate = before
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("info", "everlog.server", 'said "é"\n')
    assert first["time"].endswith("+00:00")
    assert "on purpose" in second["traceback"]


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        ({}, "WARNING"),
        ({"host": "0.0.0.0", "allow_insecure_no_auth": True}, "WARNING"),
        ({"keys": "k"}, "INFO"),
    ],
)
def test_a_start_without_keys_is_warned_of(
    caplog: pytest.LogCaptureFixture, settings: dict[str, Any], level: str
) -> None:
    caplog.set_level("INFO", "everlog")
    announce(TopicsServer(settings_of(**settings), memory=True))
    (record,) = (record for record in caplog.records if "keys:" in record.getMessage())
    assert record.levelname == level
