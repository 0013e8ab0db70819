"""What the queue benchmark says about its machine."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.queue.interruptions import late_ns


@given(st.lists(st.integers(1_000, 50_000), max_size=20), st.floats(0.1, 50.0))
def test_messages_that_need_no_time_are_as_late_as_what_is_left_of_the_gaps(
    gaps: list[int], percent: float
) -> None:
    duration = 1_000_000
    # One message at every nanosecond; the gaps come one after the other.
    waits = np.zeros(duration, dtype=np.int64)
    start = 0
    for gap in gaps:
        waits[start : start + gap] = np.arange(gap, 0, -1)[: duration - start]
        start += gap
    late = late_ns(np.asarray(gaps, dtype=np.int64), duration, percent)
    assert (waits > late + 2).mean() * 100 <= percent
    if late > 2:
        assert (waits > late - 2).mean() * 100 >= percent


def test_a_machine_without_gaps_delays_nothing() -> None:
    assert late_ns(np.asarray([], dtype=np.int64), 1e9, 1.0) == 0.0
