"""The book benchmark runs from end to end, fills its table, and can tell a miss."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.books import command, contenders, events
from benchmarks.books.command import Row, Sizes
from everlog.market.books import L2Book, L3Book

TINY = Sizes(
    updates=2000,
    records=500,
    calls=200,
    small_book=100,
    large_book=200,
    imported=300,
    featured=500,
    merged=300,
    queues=(2, 5),
)


def test_a_tiny_run_fills_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "QUICK", TINY)
    monkeypatch.setattr(command, "PEERS", ())
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: None)
    for name in ("hftbacktest_l2", "nautilus_l2", "nautilus_l3", "order_book_l2"):
        monkeypatch.setattr(contenders, name, missing)
    out = tmp_path / "out.json"
    assert command.main(["--quick", "--rounds", "1", "--json", str(out)]) == 0
    rows = {row["row"]: row for row in json.loads(out.read_text())["rows"]}
    assert all(row["values"]["everlog"] > 0 for row in rows.values())
    assert "pip install" in rows["L2 updates"]["missing"]["hftbacktest"]


def missing(*_: object) -> contenders.Timed:
    raise contenders.Missing("not installed: pip install '.[bench]'")


def test_the_events_are_those_of_a_sound_market() -> None:
    updates = events.l2_updates(5000)
    book = L2Book()
    result = book.apply_array(updates)
    assert result.top is not None
    full = result.top[(result.top["bid_size"] > 0) & (result.top["ask_size"] > 0)]
    settled = full[len(full) // 10 :]
    assert (settled["bid_price"] < settled["ask_price"]).mean() > 0.9
    orders = L3Book()
    orders.apply_array(events.l3_records(300, 2000, 50))
    assert 290 <= orders.order_count <= 310


@pytest.mark.parametrize(
    ("rate", "peer", "missed"), [(100.0, 20.0, False), (90.0, 1.0, True), (100.0, 30.0, True)]
)
def test_a_row_is_missed_below_its_target_or_too_near_to_a_peer(
    rate: float, peer: float, missed: bool
) -> None:
    row = Row("x", 95.0, 1, lambda: lambda: 1.0, rates={"everlog": [rate], "order-book": [peer]})
    assert row.is_missed() is missed
