"""One job as a model of histories: it is leased to one worker at a time, and gone once acknowledged.

Owns what claims, acks, nacks and extensions may do to a job. A history of a job queue falls apart into
those of its jobs, since no lease touches two of them. That acknowledged appends are there and
acknowledged jobs are not is the matter of `log_model`, which gets the same operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.histories.checker import Illegal, Operation


@dataclass(frozen=True, slots=True)
class Claim:
    """The job was given out. A claim without an answer is in no history: its jobs are not known."""

    lease_id: int
    node: str
    deadline_ms: int
    deliveries: int
    latest_ms: int  # the wall clock when the answer was there
    is_query: bool = False

    def __str__(self) -> str:
        lease = f"lease {self.lease_id} until {self.deadline_ms}"
        return f"claim by {self.node} -> {lease}, delivery {self.deliveries}"


@dataclass(frozen=True, slots=True)
class Settle:
    """The lease is to end or to go on: `what` is ack, nack or extend. `is_done` None: no answer."""

    what: str
    lease_id: int
    is_done: bool | None
    earliest_ms: int
    latest_ms: int
    deadline_ms: int = 0  # of an extension; without an answer the latest that it may be

    @property
    def is_query(self) -> bool:
        """A lease that was not held stays as it is."""
        return self.is_done is False

    def __str__(self) -> str:
        answer = {True: "done", False: "skipped", None: "no answer"}[self.is_done]
        return f"{self.what} of lease {self.lease_id} -> {answer}"


@dataclass(frozen=True, slots=True)
class Ended:
    """The server ended; `is_there`: the next one has found the job."""

    keeps_leases: bool
    is_there: bool
    is_query: bool = False

    def __str__(self) -> str:
        return f"server ended -> job is {'there' if self.is_there else 'gone'}"


@dataclass(frozen=True, slots=True)
class Job:
    """A state; no lease: `lease_id` 0. Deliveries are unknown after a crash: -1."""

    is_gone: bool = False
    lease_id: int = 0
    node: str = ""
    deadline_ms: int = 0
    deliveries: int = 0

    def __str__(self) -> str:
        if self.is_gone:
            return "a job that is gone"
        held = (
            f"leased as {self.lease_id} by {self.node} until {self.deadline_ms}" if self.lease_id else "ready"
        )
        return f"a job that is {held}, {self.deliveries} deliveries"


class LeaseModel:
    """One job of a job queue from its append on."""

    def __init__(self, unanswered_claims: int = 0) -> None:
        self._unanswered_claims = unanswered_claims

    def initial(self) -> Job:
        """The job as it was appended; the first claim shows that it is there."""
        return Job()

    def step(self, state: Job, operation: Operation) -> Job:
        """What an operation leaves."""
        action = operation.action
        if isinstance(action, Ended):
            if not action.is_there:
                return Job(is_gone=True)
            if state.is_gone or not action.keeps_leases:
                return Job(deliveries=-1 if state.is_gone or action.keeps_leases else 0)
            return state
        if isinstance(action, Claim):
            return self._claim(state, action)
        assert isinstance(action, Settle)
        return _settle(state, action)

    def _claim(self, state: Job, action: Claim) -> Job:
        if state.is_gone:
            raise Illegal("an acknowledged job was given out again")
        if state.lease_id and action.latest_ms <= state.deadline_ms:
            raise Illegal(f"lease {state.lease_id} of {state.node} is live until {state.deadline_ms}")
        if state.lease_id and action.lease_id <= state.lease_id:
            raise Illegal(f"the lease id does not rise above {state.lease_id}")
        # A claim without an answer has counted as a delivery too.
        low, high = state.deliveries + 1, state.deliveries + 1 + self._unanswered_claims
        if state.deliveries >= 0 and not low <= action.deliveries <= high:
            raise Illegal(f"delivery {action.deliveries}, not {low} to {high}")
        return Job(False, action.lease_id, action.node, action.deadline_ms, action.deliveries)


def _settle(state: Job, action: Settle) -> Job:
    is_held = not state.is_gone and state.lease_id == action.lease_id
    if action.is_done is False:
        if is_held and action.latest_ms <= state.deadline_ms:
            raise Illegal(f"lease {state.lease_id} is live until {state.deadline_ms}, yet it was skipped")
        return state
    if not is_held:
        raise Illegal(f"lease {action.lease_id} is not held")
    if action.earliest_ms > state.deadline_ms:
        raise Illegal(f"lease {action.lease_id} was over at {state.deadline_ms}")
    if action.what == "ack":
        return Job(is_gone=True)
    if action.what == "nack":
        return Job(deliveries=state.deliveries)
    unsure_ms = state.deadline_ms if action.is_done is None else 0
    return replace(state, deadline_ms=max(unsure_ms, action.deadline_ms))
