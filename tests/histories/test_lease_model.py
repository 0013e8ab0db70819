"""The model of a job: lawful leases are accepted; a lease held twice and a job that comes back are not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.histories.checker import NotLinearizable, Operation, check
from tests.histories.lease_model import Claim, Ended, LeaseModel, Settle


def claim(lease_id: int, at_ms: int, deliveries: int = 1, lease_ms: int = 100, node: str = "w") -> Claim:
    """A claim that was answered at `at_ms`."""
    return Claim(lease_id, node, at_ms + lease_ms, deliveries, at_ms)


def settle(what: str, lease_id: int, is_done: bool | None, at_ms: int, deadline_ms: int = 0) -> Settle:
    """An ack, nack or extension at `at_ms`."""
    return Settle(what, lease_id, is_done, at_ms, at_ms, deadline_ms)


def verdict(*actions: Any, lost_claims: int = 0) -> None:
    """Check operations that follow each other; those without an answer stay open."""
    operations = [
        Operation(number, "w", 10 * number, None if _is_open(action) else 10 * number + 5, action)
        for number, action in enumerate(actions)
    ]
    check(LeaseModel(lost_claims), operations, "job 1 of q")


def _is_open(action: Any) -> bool:
    return isinstance(action, Settle) and action.is_done is None


VIOLATIONS: dict[str, tuple[str, list[Any]]] = {
    "lease held twice": (
        "lease 1 of w is live until 100",
        [claim(1, 0), claim(2, 100, 2)],
    ),
    "acknowledged job given out again": (
        "an acknowledged job was given out again",
        [claim(1, 0), settle("ack", 1, True, 5), claim(2, 500, 2)],
    ),
    "acknowledged twice": (
        "lease 1 is not held",
        [claim(1, 0), settle("ack", 1, True, 5), settle("ack", 1, True, 6)],
    ),
    "acknowledged by a lease that is over": (
        "lease 1 was over at 100",
        [claim(1, 0), settle("ack", 1, True, 101)],
    ),
    "acknowledged by an older lease": (
        "lease 1 is not held",
        [claim(1, 0), claim(2, 101, 2), settle("ack", 1, True, 102)],
    ),
    "live lease skipped": (
        "yet it was skipped",
        [claim(1, 0), settle("ack", 1, False, 100)],
    ),
    "given out within an extension": (
        "lease 1 of w is live until 300",
        [claim(1, 0), settle("extend", 1, True, 50, 300), claim(2, 200, 2)],
    ),
    "delivery not counted": (
        "delivery 1, not 2 to 2",
        [claim(1, 0), settle("nack", 1, True, 5), claim(2, 6, 1)],
    ),
    "lease that a restart should have kept": (
        "lease 1 of w is live until 100",
        [claim(1, 0), Ended(keeps_leases=True, is_there=True), claim(2, 50, 2)],
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_planted_violation_is_rejected_and_named(name: str) -> None:
    reason, actions = VIOLATIONS[name]
    with pytest.raises(NotLinearizable) as caught:
        verdict(*actions)
    assert reason in str(caught.value)


ALLOWED: dict[str, list[Any]] = {
    "claim, ack": [claim(1, 0), settle("ack", 1, True, 100)],
    "expiry": [claim(1, 0), claim(2, 101, 2), settle("ack", 1, False, 102), settle("ack", 2, True, 103)],
    "nack": [claim(1, 0), settle("nack", 1, True, 5), claim(2, 6, 2)],
    "an ack without an answer that happened": [claim(1, 0), settle("ack", 1, None, 5), Ended(False, False)],
    "an ack without an answer that did not": [claim(1, 0), settle("ack", 1, None, 5), claim(2, 101, 2)],
    "an extension without an answer": [
        claim(1, 0),
        settle("extend", 1, None, 5, 500),
        settle("ack", 1, True, 400),
    ],
    "a restart that ends leases": [claim(1, 0), Ended(False, True), claim(1, 5, 1)],
    "a restart that keeps them": [claim(1, 0), Ended(True, True), settle("ack", 1, True, 50)],
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_allowed_is_accepted(name: str) -> None:
    verdict(*ALLOWED[name])


def test_a_claim_without_an_answer_may_have_counted() -> None:
    verdict(claim(1, 0), claim(3, 101, 3), lost_claims=1)
    with pytest.raises(NotLinearizable):
        verdict(claim(1, 0), claim(3, 101, 3))
