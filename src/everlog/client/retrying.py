"""When a request is tried again, and after which pause.

Owns the rules: a refusal with 429 or 503 did nothing and is always retried; so is a request that could not be
sent. One that was sent and not answered is retried only if its description says that this does no harm.
Everything ends at the deadline. Pauses grow, are randomized so that clients do not retry in step, and are at
least what the server asks for. Sleeps and sends nothing.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from everlog.client.errors import ApiFailed
from everlog.clock import NS_PER_S
from everlog.errors import InvalidConfig

SHORTEST_TRY_S: Final = 0.05
CONNECT_S: Final = 2.0
log = logging.getLogger("everlog.client")


class Backoff:
    """Pauses between attempts: each up to twice as long as the one before, randomized."""

    FIRST_S: Final = 0.1
    LONGEST_S: Final = 5.0

    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._next_s = first_s
        self._longest_s = longest_s

    def pause_s(self, error: ApiFailed) -> float:
        """The pause after this failure; at least what the server asked for."""
        pause_s = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self._longest_s)
        return max(pause_s, min(error.retry_after_s, self._longest_s))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a call keeps trying, and how long it pauses in between; a deadline of 0 tries once.

    A client that has never had an answer gives up after `connect_s`: the address is then more likely wrong
    than the server away for a moment.
    """

    deadline_s: float = 30.0
    first_pause_s: float = Backoff.FIRST_S
    longest_pause_s: float = Backoff.LONGEST_S
    connect_s: float = CONNECT_S

    def __post_init__(self) -> None:
        if self.deadline_s < 0 or self.connect_s < 0 or not 0 < self.first_pause_s <= self.longest_pause_s:
            raise InvalidConfig(
                f"a deadline of {self.deadline_s} s with pauses from {self.first_pause_s} s to "
                f"{self.longest_pause_s} s cannot work; give a deadline of 0 or more and growing pauses"
            )


ONCE: Final = RetryPolicy(deadline_s=0)
"""A single attempt."""


class Reached:
    """Whether a client has ever had an answer; shared by all its calls."""

    __slots__ = ("is_known",)

    def __init__(self) -> None:
        self.is_known = False


class Attempts:
    """The attempts of one call; `begin_again` after a success restarts the deadline."""

    def __init__(
        self, policy: RetryPolicy, now_ns: Callable[[], int], reached: Reached | None = None
    ) -> None:
        self._policy = policy
        self._now_ns = now_ns
        self._reached = reached or Reached()
        self._started_ns = now_ns()
        self._has_warned = False
        self._backoff = Backoff(policy.first_pause_s, policy.longest_pause_s)
        self._deadline_ns: int | None = None

    def begin_again(self) -> None:
        """Forget earlier failures."""
        self._reached.is_known = True
        self._has_warned = False
        if self._deadline_ns is not None:
            self._deadline_ns = None
            self._backoff = Backoff(self._policy.first_pause_s, self._policy.longest_pause_s)

    def left_s(self, at_most_s: float) -> float:
        """How long the next attempt may take without a byte from the server."""
        if self._deadline_ns is None:
            self._deadline_ns = self._now_ns() + int(self._policy.deadline_s * NS_PER_S)
        left_s = (self._deadline_ns - self._now_ns()) / NS_PER_S
        # With a deadline of 0 there is one attempt, and that has all the time it needs.
        return at_most_s if self._policy.deadline_s == 0 else min(at_most_s, max(left_s, SHORTEST_TRY_S))

    def pause_s(self, error: ApiFailed, may_repeat: bool) -> float:
        """The pause before the next attempt; raises the error if there is to be none."""
        is_safe = error.is_busy or (error.is_outage and (may_repeat or not error.was_sent))
        if not is_safe:
            raise error
        now_ns = self._now_ns()
        if self._deadline_ns is None:
            self._deadline_ns = now_ns + int(self._policy.deadline_s * NS_PER_S)
        pause_s = self._backoff.pause_s(error)
        next_ns = now_ns + int(pause_s * NS_PER_S)
        if next_ns >= self._deadline_ns:
            raise error
        if not error.is_outage:
            self._reached.is_known = True
        connect_ns = self._started_ns + int(self._policy.connect_s * NS_PER_S)
        if not self._reached.is_known and not error.was_sent and next_ns >= connect_ns:
            raise error
        # The first one of a call is a warning; the others say the same.
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        log.log(level, "%s; trying again in %.1f s", error, pause_s)
        return pause_s


def checked_policy(retry: RetryPolicy | None) -> RetryPolicy:
    """The given policy or the default one; raises InvalidConfig for anything else."""
    if retry is None:
        return RetryPolicy()
    if not isinstance(retry, RetryPolicy):
        raise InvalidConfig(f"retry is {retry!r}; give a policy like RetryPolicy(deadline_s=30)")
    return retry
