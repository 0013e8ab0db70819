"""`everlog book plot`: well-formed pictures that hold the series they name."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from everlog.cli.book_options import book_settings
from everlog.errors import Unsupported
from everlog.market import BookSettings
from everlog.market.book_pictures import picture
from everlog.market.feature_rows import GlobalTime, mid_price
from everlog.market.plots import check_plots
from everlog.market.protocol import BookFlags, TypeId
from everlog.market.replay import Replay
from everlog.market.triggers import TimeBar
from everlog.market.venues.simulated import SimulatedVenue
from everlog.queue import Queue
from tests.support.book_twins import l3_records
from tests.support.command_lines import run_here

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Levels and orders of two symbols."""
    path = tmp_path_factory.mktemp("plots") / "queue"
    with Queue.open_publisher(path, segment_size=1 << 20) as writer:
        venue = SimulatedVenue(("AAA", "BBB"), rate=4000.0, resting_orders=20, block_events=500)
        for block in venue.blocks(3000):
            block.append_to(writer)
    return path


def plotted(queue: Path, out: Path, *arguments: object) -> dict[str, object]:
    """Run the command and return what it says."""
    done = run_here("book", "plot", queue, "--symbol", "AAA", "--out", out, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, object] = json.loads(done.stdout)
    return document


def points_of(picture: ET.Element, line: str) -> int:
    """Return how many points the line of a name has."""
    groups = [one for one in picture.iter(f"{SVG}g") if one.get("id") == line]
    path = groups[0].find(f"{SVG}path")
    assert path is not None
    return len(re.findall(r"[ML] ", path.get("d", "")))


@pytest.mark.parametrize(
    ("kind", "lines", "labels"),
    [
        ("mid", ["bid_price", "mid_price", "ask_price", "spread"], ["price", "spread"]),
        ("imbalance", ["book_imbalance", "mid_price"], ["imbalance of 4 levels"]),
        ("depth", ["bid_price", "ask_price"], ["price", "log10(1 + size)"]),
        ("queue-position", ["size_ahead", "orders_ahead"], ["size ahead", "orders ahead"]),
    ],
)
def test_a_picture_is_well_formed_and_holds_its_series(
    queue: Path, tmp_path: Path, kind: str, lines: list[str], labels: list[str]
) -> None:
    out = tmp_path / "book.svg"
    mode = () if kind == "queue-position" else ("--mode", "l2")
    said = plotted(queue, out, "--kind", kind, "--levels", 4, "--points", 50, *mode)
    picture = ET.parse(out).getroot()
    texts = {"".join(one.itertext()).strip() for one in picture.iter(f"{SVG}text")}
    assert set(labels) <= texts
    assert any(text.startswith("simulated AAA: ") for text in texts)
    assert {points_of(picture, line) for line in lines} == {said["points"]}
    assert (said["venue"], said["symbol"]) == ("simulated", "AAA")
    assert (out.parent / "book.svg.tmp").exists() is False
    if kind == "mid":
        settings, trigger = book_settings("ignore", "skip", "l2"), TimeBar(span_ns(queue) // 50)
        replay = Replay(str(queue)).symbols("AAA").features([GlobalTime(), mid_price()], settings)
        rows = np.concatenate([one.rows for one in replay.trigger(trigger).tables()])
        assert said["points"] == np.count_nonzero(rows["mid_price"]) > 10


def span_ns(queue: Path) -> int:
    """Return the time between the first and the last message."""
    with Queue.open_subscriber(queue, None, "earliest") as reader:
        times = [one.timestamp_ns for one in reader]
    return times[-1] - times[0]


def test_the_order_that_waited_longest_is_found_in_the_middle_of_an_event(tmp_path: Path) -> None:
    rows = [(1, 1, 1, 0, 0, 100, 5, 0), (1, 1, 2, 0, 0, 100, 4, 0), (2, 1, 1, 0, 0, 100, 2, 0)]
    records = l3_records(rows)
    records["header"]["ingest_ts_ns"] = times = np.array([10, 20, 90], np.uint64)
    records["header"]["flags"] |= np.uint16(BookFlags.MARKS_EVENT_ENDS)
    with Queue.open_publisher(tmp_path / "q", segment_size=1 << 16) as writer:
        # No message is marked: the venue's event goes on.
        ends, flags = np.arange(1, 4, dtype=np.uint64) * np.uint64(128), np.zeros(3, np.uint16)
        writer.append_packed(TypeId.BOOK_EVENT, records.view(np.uint8), ends, times, flags)
    shown = picture("queue-position", Replay(str(tmp_path / "q")), BookSettings(), step_ns=1, levels=1)
    assert shown.what == "queue position of order 2"
    size_ahead, orders_ahead = (panel.series[0] for panel in shown.panels)
    assert (size_ahead.times_ns.tolist(), size_ahead.values.tolist()) == ([20, 90], [5.0, 3.0])
    assert orders_ahead.values.tolist() == [1.0, 1.0]


def test_a_png_is_a_picture_of_the_size_that_was_drawn(queue: Path, tmp_path: Path) -> None:
    plotted(queue, tmp_path / "book.png", "--mode", "l2")
    data = (tmp_path / "book.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert width > 1000 and height > 400


def test_equal_books_give_equal_files(queue: Path, tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        plotted(queue, tmp_path / name, "--kind", "mid", "--mode", "l2")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_queue_of_many_markets_asks_for_one(queue: Path, tmp_path: Path) -> None:
    done = run_here("book", "plot", queue, "--mode", "l2", "--out", tmp_path / "x.svg")
    assert done.returncode == 1 and "there are 2 markets; choose one with --symbol" in done.stderr
    done = run_here("book", "plot", queue, "--symbol", "ZZZ", "--out", tmp_path / "x.svg")
    assert done.returncode == 1 and "nothing to plot" in done.stderr
    done = run_here("book", "plot", queue, "--kind", "wind", "--out", tmp_path / "x.svg")
    assert done.returncode == 1 and "known are depth, mid, imbalance, queue-position" in done.stderr
    assert not list(tmp_path.iterdir())


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Unsupported, match=r"pip install 'everlog\[plot\]'"):
        check_plots("x.svg")
