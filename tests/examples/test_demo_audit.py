"""The audit of the demonstration against a plain model: it must count what is missing and see what is odd."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.bus import FILL_TYPE_ID, ORDER_TYPE_ID, IpcLayout
from everlog.market.protocol import TRADE
from everlog.queue import Queue
from examples.demo.audit import Findings, audit
from examples.demo.plan import Kill
from examples.demo.records import (
    BOOKED,
    BOOKED_TYPE_ID,
    BUY,
    FILL,
    ORDER,
    SELL,
    SESSION_END,
    SESSION_END_TYPE_ID,
    TRADE_TYPE_ID,
    books_dir,
    ticks_dir,
)
from tests.support.effort import effort

SOLO = "solo"
START_NS = 1_700_000_000_000_000_000
STEP_NS = 1000


@dataclass(frozen=True)
class Session:
    """What one strategy, its router and its feed left behind; every list is in order of writing."""

    ticks: int
    orders: list[tuple[int, int]]  # (tick, run of the strategy)
    fills: list[int]  # index of the order
    booked: list[tuple[int, bool]]  # (index of the fill, whether it was applied)
    ends: list[int] = field(default_factory=lambda: [-1])  # -1 stands for the right number of ticks
    price_of_order: float = 5.0
    quantity_of_fill: float = 2.0
    position_off_by: float = 0.0
    foreign_messages: int = 0


def side_of(tick: int) -> int:
    return BUY if tick % 3 else SELL


def trade_bytes(tick: int) -> bytes:
    trade = np.zeros(1, dtype=TRADE)
    trade["price"], trade["qty"], trade["trade_id"] = 5.0, 2.0, tick
    trade["is_buyer_maker"] = side_of(tick) == SELL
    return trade.tobytes()


def write(root: Path, session: Session) -> None:
    """Write the queues as the processes of the demonstration would."""
    layout = IpcLayout(root)
    endpoints = layout.orders().strategy_endpoints(SOLO)
    position = sum(
        session.quantity_of_fill * (1 if side_of(session.orders[order][0]) == BUY else -1)
        for order in session.fills
    )
    with Queue.open_publisher(ticks_dir(layout), segment_size=1024) as ticks:
        for tick in range(session.ticks):
            ticks.append(TRADE_TYPE_ID, trade_bytes(tick), START_NS + tick * STEP_NS)
        for end in session.ends:
            trades = session.ticks if end < 0 else end
            ticks.append(SESSION_END_TYPE_ID, SESSION_END.pack(trades, 0, 0, trades, 0, 0, 1, 0))
    with Queue.open_publisher(endpoints.orders_out, segment_size=1024) as orders:
        for number, (tick, run) in enumerate(session.orders):
            tick_ns = START_NS + tick * STEP_NS
            order = (tick, tick_ns, tick_ns + 10, run, 0, side_of(tick), session.price_of_order, 2.0)
            orders.append(ORDER_TYPE_ID, ORDER.pack(*order), START_NS + number)
        for _ in range(session.foreign_messages):
            orders.append(77, bytes(64))
    with Queue.open_publisher(endpoints.orders_in, segment_size=1024) as fills:
        for order_seq in session.fills:
            tick = session.orders[order_seq][0]
            sent_ns = START_NS + order_seq
            fill = (tick, order_seq, sent_ns, sent_ns + 20, 0, side_of(tick), 5.0, session.quantity_of_fill)
            fills.append(FILL_TYPE_ID, FILL.pack(*fill), sent_ns + 30)
    with Queue.open_publisher(books_dir(layout, SOLO), segment_size=1024) as books:
        for fill_seq, applied in session.booked:
            order_seq = session.fills[fill_seq]
            tick = session.orders[order_seq][0]
            sent_ns = START_NS + order_seq + 30
            held = position + session.position_off_by
            books.append(
                BOOKED_TYPE_ID, BOOKED.pack(fill_seq, tick, sent_ns, sent_ns + 40, 0, applied, 1, held)
            )


@contextmanager
def written(session: Session) -> Iterator[Path]:
    """A directory with the queues of a session."""
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory), session)
        yield Path(directory)


def killed_at(committed_seq: int) -> Kill:
    return Kill(SOLO, 4711, START_NS, START_NS, committed_seq)


def findings_of(session: Session, kill: Kill | None = None) -> Findings:
    with written(session) as root:
        return audit(root, [SOLO], kill)


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    """Any mixture of missing, repeated and doubled messages; the books are never empty if fills exist."""
    ticks = draw(st.integers(1, 8))
    order = st.tuples(st.integers(0, ticks - 1), st.integers(1, 3))
    orders = draw(st.lists(order, min_size=1, max_size=12))
    fills = draw(st.lists(st.integers(0, len(orders) - 1), min_size=1, max_size=12))
    booked = st.tuples(st.integers(0, len(fills) - 1), st.booleans())
    return Session(ticks, orders, fills, draw(st.lists(booked, min_size=1, max_size=12)))


@settings(max_examples=effort(40))
@given(sessions())
def test_the_audit_counts_lost_duplicated_and_redelivered_as_a_plain_model_does(session: Session) -> None:
    found = findings_of(session)
    assert found.problems == []
    ids = [tick for tick, _ in session.orders]
    per_run = Counter(session.orders)
    answered = Counter(ids[order] for order in session.fills)
    applied = Counter(fill for fill, was_applied in session.booked if was_applied)
    wanted = {
        f"feed -> {SOLO}": (
            sum(tick not in ids for tick in range(session.ticks)),
            sum(count - 1 for count in per_run.values()),
            sum(len({run for tick, run in session.orders if tick == cause}) - 1 for cause in set(ids)),
        ),
        f"{SOLO} -> router": (
            sum(order_id not in answered for order_id in set(ids)),
            sum(count - 1 for count in answered.values()),
            sum(count - 1 for count in Counter(ids).values()),
        ),
        f"router -> {SOLO}": (
            sum(fill not in applied for fill in range(len(session.fills))),
            sum(count - 1 for count in applied.values()),
            sum(not was_applied for _, was_applied in session.booked),
        ),
    }
    assert {link.name: (link.lost, link.duplicated, link.redelivered) for link in found.links} == wanted
    assert found.zero_loss == (not any(lost or doubled for lost, doubled, _ in wanted.values()))


ONE_END = "the session should end once, after (0, 0, 4) L3 events, L2 events and trades"
GOOD = Session(
    ticks=4,
    orders=[(0, 1), (1, 1), (2, 1), (1, 2), (2, 2), (3, 2)],
    fills=[0, 1, 2, 5],
    booked=[(0, True), (1, True), (1, False), (2, True), (3, True)],
)


def test_a_restart_that_repeats_itself_and_is_recognised_is_no_loss() -> None:
    found = findings_of(GOOD, killed_at(1))
    assert found.zero_loss
    assert [link.redelivered for link in found.links] == [2, 2, 1]
    assert found.resumption is not None
    assert (found.resumption.last_seq_before, found.resumption.first_seq_after) == (2, 1)


def test_latency_is_the_time_from_append_to_receipt() -> None:
    found = findings_of(GOOD)
    medians_us = [link.latency.p50_us for link in found.links if link.latency is not None]
    assert medians_us == [0.010, 0.020, 0.040]


@pytest.mark.parametrize(
    ("session", "problem"),
    [
        (replace(GOOD, ends=[]), f"{ONE_END}; ends: []"),
        (replace(GOOD, ends=[-1, -1]), f"{ONE_END}; ends: [(0, 0, 4), (0, 0, 4)]"),
        (replace(GOOD, ends=[9]), f"{ONE_END}; ends: [(0, 0, 9)]"),
        (replace(GOOD, price_of_order=6.0), "orders of solo: 6 contents that differ from the trade"),
        (replace(GOOD, quantity_of_fill=3.0), "fills of solo: 4 contents that differ from the order"),
        (replace(GOOD, position_off_by=1.0), "solo believes to hold"),
        (replace(GOOD, foreign_messages=1), "orders of solo: 1 messages of a foreign type"),
        (replace(GOOD, ticks=3), "orders of solo: 1 ids that no trade has"),
    ],
)
def test_what_is_odd_is_named_and_is_no_zero_loss(session: Session, problem: str) -> None:
    found = findings_of(session)
    assert any(text.startswith(problem) for text in found.problems), found.problems
    assert not found.zero_loss


def test_a_resumption_elsewhere_than_at_the_committed_position_is_a_problem() -> None:
    [problem] = findings_of(GOOD, killed_at(2)).problems
    assert problem == "solo had committed up to message 2 but resumed with the trade 1"
    unharmed = Session(ticks=1, orders=[(0, 1)], fills=[0], booked=[(0, True)])
    [problem] = findings_of(unharmed, killed_at(0)).problems
    assert problem == "solo sent no orders before its kill, or none after it"
