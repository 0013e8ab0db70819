"""The memory of a rate limit, beside a list of all claims."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everlog.job_types import RateLimit
from everlog.topics.jobs.claim_rates import ClaimRates

PER_MS = 10
steps = st.lists(st.tuples(st.integers(0, 6), st.sampled_from("abcdef"), st.booleans()), max_size=60)


@given(steps)
def test_a_claim_counts_for_its_time_and_an_undone_one_does_not(steps: list[tuple[int, str, bool]]) -> None:
    rates = ClaimRates(RateLimit(3, PER_MS, "key"))
    claims: list[tuple[int, str]] = []
    now_ms = 0
    for passed_ms, key, is_undone in steps:
        now_ms += passed_ms
        rates.note(key, now_ms)
        if is_undone:
            rates.undo(key)
        else:
            claims.append((now_ms, key))
        counting = [name for claimed_ms, name in claims if now_ms - claimed_ms < PER_MS]
        assert [rates.room(name, now_ms) for name in "abcdef"] == [
            3 - counting.count(name) for name in "abcdef"
        ]


def test_keys_that_never_come_again_are_forgotten() -> None:
    rates = ClaimRates(RateLimit(3, PER_MS, "key"))
    for now_ms in range(1000):
        rates.note(f"order {now_ms}", now_ms)
    assert [key for key, _ in rates.stored()] == [f"order {now_ms}" for now_ms in range(990, 1000)]
