"""Paths of the bus: section 5.1 (components) and 10.1 (where queues live)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.bus import IpcLayout
from everlog.errors import InvalidName

ROOT = Path("/bus")

# Every way a name from outside can become part of a path.
ENTRANCES: dict[str, Callable[[str], object]] = {
    "raw venue": lambda name: IpcLayout(ROOT).streams().raw_queue_dir(name),
    "clean venue": lambda name: IpcLayout(ROOT).streams().clean_queue_dir(name, "btcusdt", "book"),
    "clean symbol": lambda name: IpcLayout(ROOT).streams().clean_queue_dir("binance", name, "book"),
    "clean stream": lambda name: IpcLayout(ROOT).streams().clean_queue_dir("binance", "btcusdt", name),
    "strategy id": lambda name: IpcLayout(ROOT).orders().strategy_endpoints(name),
}


def test_the_raw_queue_of_a_venue_is_streams_raw_venue_queue() -> None:
    assert IpcLayout(ROOT).streams().raw_queue_dir("binance") == ROOT / "streams/raw/binance/queue"


def test_the_clean_queue_is_streams_clean_venue_symbol_stream_queue() -> None:
    path = IpcLayout(ROOT).streams().clean_queue_dir("binance", "btcusdt", "book")
    assert path == ROOT / "streams/clean/binance/btcusdt/book/queue"


def test_a_strategy_has_orders_out_and_orders_in_below_orders_queue() -> None:
    orders = IpcLayout(ROOT).orders()
    endpoints = orders.strategy_endpoints("arb")
    assert orders.queue_root == ROOT / "orders/queue"
    assert endpoints.strategy == "arb"
    assert endpoints.orders_out == ROOT / "orders/queue/arb/orders_out"
    assert endpoints.orders_in == ROOT / "orders/queue/arb/orders_in"


def test_the_root_may_be_a_string_or_a_path() -> None:
    assert IpcLayout("/bus").orders() == IpcLayout(Path("/bus")).orders()


def test_a_layout_touches_no_file(tmp_path: Path) -> None:
    IpcLayout(tmp_path / "bus").orders().strategy_endpoints("arb")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/", "a\\b", "a\0b"])
def test_a_component_that_is_empty_or_dots_or_holds_a_separator_or_nul_is_refused(
    entrance: str, name: str
) -> None:
    with pytest.raises(InvalidName):
        ENTRANCES[entrance](name)


@given(venue=st.text(max_size=12), symbol=st.text(max_size=12), stream=st.text(max_size=12))
def test_an_accepted_path_has_exactly_the_given_components_below_the_root(
    venue: str, symbol: str, stream: str
) -> None:
    names = (venue, symbol, stream)
    allowed = all(name not in ("", ".", "..") and not set(name) & set("/\\\0") for name in names)
    try:
        path = IpcLayout(ROOT).streams().clean_queue_dir(*names)
    except InvalidName:
        assert not allowed
    else:
        assert allowed
        assert path.parts == ("/", "bus", "streams", "clean", *names, "queue")
