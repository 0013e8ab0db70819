"""What is tried again and what is not: lost connections, 429 and 503, within a deadline."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.client import ApiFailed, Client, NewRecord, RetryPolicy
from everlog.client.retrying import Attempts, Reached
from everlog.clock import NS_PER_S, TestClock
from everlog.errors import InvalidConfig
from tests.support.client_faces import face
from tests.support.tcp_peers import ScriptedServer, http_answer

APPENDED = {
    "topic": "t",
    "first_seq": 1,
    "last_seq": 1,
    "head_seq": 1,
    "count": 1,
    "created": False,
    "deduped": False,
}
OK = http_answer(200, json.dumps(APPENDED).encode())
CLAIMED = http_answer(200, b'{"topic":"t","claimed":[],"count":0,"ready":0}')
BUSY = http_answer(429, b'{"error":{"code":"throttled","message":"full"}}', "Retry-After: 1")
STARTING = http_answer(503, b'{"error":{"code":"not_ready","message":"soon"}}', "Retry-After: 1")
BROKEN = http_answer(500, b'{"error":{"code":"internal","message":"sorry","detail":{"at":"x"}}}')
NOTHING = b""
FAST = RetryPolicy(deadline_s=20, first_pause_s=0.001, longest_pause_s=0.002)
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


def keys_of(server: ScriptedServer) -> set[str]:
    return {json.loads(request.partition(b"\r\n\r\n")[2])["idempotency_key"] for request in server.requests}


@KINDS
@pytest.mark.parametrize("trouble", [BUSY, STARTING, NOTHING, OK[:30]])
def test_an_append_is_tried_again_with_the_same_key(kind: str, trouble: bytes) -> None:
    with ScriptedServer([trouble], [trouble], [OK]) as server, face(kind, server.url, retry=FAST) as client:
        assert client.append("t", 1).first_seq == 1
        assert len(server.requests) == 3
        assert len(keys_of(server)) == 1


@KINDS
def test_every_append_has_a_key_of_its_own_unless_it_brings_one(kind: str) -> None:
    with ScriptedServer([OK, OK, OK]) as server, face(kind, server.url) as client:
        client.append("t", 1)
        client.append_many("t", [NewRecord(1)])
        client.append("t", 1, idempotency_key="mine")
        assert len(keys_of(server)) == 3
        assert "mine" in keys_of(server)


@KINDS
def test_a_claim_without_an_answer_is_not_repeated(kind: str) -> None:
    with ScriptedServer([NOTHING], [CLAIMED]) as server, face(kind, server.url, retry=FAST) as client:
        with pytest.raises(ApiFailed) as raised:
            client.claim("t", "w")
        assert raised.value.was_sent
        assert len(server.requests) == 1


@KINDS
def test_a_claim_that_was_refused_for_now_is_repeated(kind: str) -> None:
    with ScriptedServer([BUSY], [CLAIMED]) as server, face(kind, server.url, retry=FAST) as client:
        assert client.claim("t", "w").claimed == []


@KINDS
def test_a_server_error_is_not_tried_again_and_carries_code_and_detail(kind: str) -> None:
    with ScriptedServer([BROKEN], [OK]) as server, face(kind, server.url, retry=FAST) as client:
        with pytest.raises(ApiFailed, match="sorry") as raised:
            client.append("t", 1)
        assert (raised.value.status, raised.value.code, raised.value.detail) == (500, "internal", {"at": "x"})
        assert len(server.requests) == 1


def test_the_pauses_are_those_the_server_asks_for_and_end_at_the_deadline() -> None:
    clock = TestClock()
    with (
        ScriptedServer(*[[BUSY]] * 50) as server,
        Client(server.url, retry=RetryPolicy(deadline_s=5), clock=clock) as client,
    ):
        with pytest.raises(ApiFailed, match="full"):
            client.append("t", 1)
        # One second at least between two, five in all.
        assert 3 <= len(server.requests) <= 6
    assert clock.monotonic_ns() <= 5 * NS_PER_S


def test_without_a_deadline_there_is_one_try() -> None:
    with (
        ScriptedServer([BUSY], [OK]) as server,
        Client(server.url, retry=RetryPolicy(deadline_s=0)) as client,
    ):
        with pytest.raises(ApiFailed):
            client.append("t", 1)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: RetryPolicy(deadline_s=-1),
        lambda: RetryPolicy(first_pause_s=0),
        lambda: RetryPolicy(first_pause_s=2, longest_pause_s=1),
    ],
)
def test_a_policy_that_cannot_work_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidConfig):
        make()


ERRORS = st.builds(
    ApiFailed,
    status=st.sampled_from([0, 400, 404, 422, 429, 500, 502, 503, 504]),
    code=st.just("x"),
    message=st.just("y"),
    retry_after_s=st.sampled_from([0.0, 1.0, 7.0]),
    was_sent=st.booleans(),
)


@given(
    st.lists(ERRORS, min_size=1, max_size=30),
    st.booleans(),
    st.sampled_from([0.0, 1.0, 10.0]),
    st.booleans(),
)
def test_what_is_tried_again_follows_the_rule(
    errors: list[ApiFailed], may_repeat: bool, deadline_s: float, is_known: bool
) -> None:
    clock = TestClock()
    policy = RetryPolicy(deadline_s=deadline_s)
    reached = Reached()
    reached.is_known = is_known
    attempts = Attempts(policy, clock.monotonic_ns, reached)
    attempts.left_s(30)
    for error in errors:
        harmless = error.status in (429, 503) or (
            error.status in (0, 502, 504) and (may_repeat or not error.was_sent)
        )
        try:
            pause_s = attempts.pause_s(error, may_repeat)
        except ApiFailed as raised:
            assert raised is error
            # It gave up because it had to, or because the next try would be too late: sooner if nothing
            # has ever answered.
            answered = is_known or error.was_sent or error.status in (429, 503)
            last_s = deadline_s if answered else min(deadline_s, policy.connect_s)
            assert not harmless or clock.monotonic_ns() / NS_PER_S + 5 >= last_s
            return
        is_known = is_known or error.status in (429, 503)
        assert harmless
        assert pause_s >= min(error.retry_after_s, 5)
        clock.advance_ns(int(pause_s * NS_PER_S))
        assert clock.monotonic_ns() < deadline_s * NS_PER_S
