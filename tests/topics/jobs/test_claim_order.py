"""The order of claims, against a list that is sorted anew for each of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everlog.topics.jobs.claim_order import ClaimOrder, base_band, rank_of

_JOBS = st.tuples(
    st.integers(-1000, 1000),
    st.one_of(st.integers(0, 60_000), st.sampled_from([0, 999, 1000, 9_999, 10_000, 10_001])),
    st.booleans(),
)


@given(
    st.lists(st.one_of(_JOBS, st.integers(0, 12_000)), max_size=60),
)
def test_the_next_job_is_the_first_of_a_sorted_list(steps: list[tuple[int, int, bool] | int]) -> None:
    order = ClaimOrder()
    model: list[tuple[int, int, int, bool]] = []
    now_ms = 60_000
    for seq, step in enumerate(steps):
        if not isinstance(step, int):
            priority, due_ms, is_fresh = step
            order.add(seq, base_band(priority), due_ms, is_fresh)
            model.append((seq, base_band(priority), due_ms, is_fresh))
            continue
        now_ms += step
        found = order.first(now_ms)
        wanted = min(model, key=lambda job: rank_of(job[1], job[2], job[3], job[0], now_ms), default=None)
        assert (None if found is None else found.seq) == (None if wanted is None else wanted[0])
        if found is not None and wanted is not None:
            order.remove(found)
            model.remove(wanted)
        assert order.size == len(model)


def test_priority_rises_by_a_band_for_every_ten_seconds_of_waiting() -> None:
    order = ClaimOrder()
    order.add(1, base_band(0), 0, True)
    order.add(2, base_band(250), 20_000, True)
    first = order.first(20_000)
    assert first is not None
    assert first.seq == 1  # two bands higher than it was, the other one band
    order = ClaimOrder()
    order.add(1, base_band(0), 10_001, True)
    order.add(2, base_band(250), 20_000, True)
    first = order.first(20_000)
    assert first is not None
    assert first.seq == 2  # 9999 ms do not count


def test_inside_a_band_delivered_jobs_come_first() -> None:
    order = ClaimOrder()
    order.add(1, base_band(249), 5, True)
    order.add(2, base_band(0), 5, False)
    first = order.first(10)
    assert first is not None
    assert first.seq == 2
