"""The rules of a session: what is buffered, what follows, what breaks, and what is asked for then."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from everlog.feeds.encoding import PACKED_LEVEL, BadNumber, FeedGap, SymbolEncoder
from everlog.feeds.session import BUFFER_MAX, FeedSession, Flagged
from everlog.feeds.venues import VENUES
from everlog.market.protocol import BOOK_EVENT_HEADER, BookEventType, MessageFlags, TypeId
from everlog.market.views import BookEventView
from everlog.native.market.events import pack_levels
from tests.support.effort import effort
from tests.support.feed_runs import FedBooks, sides_of

SYMBOL = "BTCUSDT"
Level = tuple[str, str]


def diff(first: int, last: int, previous: int | None = None, bids: Any = (("100.0", "1"),)) -> bytes:
    data: dict[str, Any] = {
        "e": "depthUpdate",
        "E": last,
        "s": SYMBOL,
        "U": first,
        "u": last,
        "b": bids,
        "a": [],
    }
    if previous is not None:
        data["pu"] = previous
    return json.dumps({"stream": "btcusdt@depth@100ms", "data": data}).encode()


def snapshot(last: int, bids: Any = (("99.0", "2"),)) -> bytes:
    return json.dumps({"lastUpdateId": last, "bids": bids, "asks": [["101.0", "3"]]}).encode()


def session(venue: str = "binance", symbol: str = SYMBOL) -> FeedSession:
    one = FeedSession(VENUES[venue](), [symbol])
    assert one.connected(1, is_continued=False) == []
    return one


def kinds(messages: list[Flagged]) -> list[str]:
    names = []
    for kind, payload, _ in messages:
        if kind == TypeId.BOOK_EVENT:
            header = memoryview(payload)[: BOOK_EVENT_HEADER.itemsize]
            names.append(BookEventType(header[56]).name.lower())
        else:
            names.append(TypeId(kind).name.lower())
    return names


def gaps_of(messages: list[Flagged]) -> list[FeedGap]:
    return [
        msgspec.json.decode(payload, type=FeedGap) for kind, payload, _ in messages if kind == TypeId.FEED_GAP
    ]


def test_diffs_wait_for_the_snapshot_and_older_ones_are_dropped() -> None:
    one = session()
    assert one.snapshots_wanted == [SYMBOL]
    assert [one.frame(diff(n, n + 1), n) for n in (1, 3, 5)] == [[], [], []]
    messages = one.snapshot(SYMBOL, snapshot(4), 9)
    assert kinds(messages) == ["snapshot", "diff"]
    flags = [flag for *_, flag in messages]
    assert [bool(flag & MessageFlags.LAST_OF_EVENT) for flag in flags] == [False, True]
    counts = one.symbols[SYMBOL].counts
    assert (counts["superseded"], counts["repeated"]) == (2, 0)
    assert kinds(one.frame(diff(7, 7), 10)) == ["diff"]


def test_a_snapshot_older_than_the_first_diff_is_asked_for_again() -> None:
    one = session()
    one.snapshots_wanted.clear()
    one.frame(diff(10, 11), 1)
    assert one.snapshot(SYMBOL, snapshot(8), 2) == []
    assert one.snapshots_wanted == [SYMBOL]
    assert kinds(one.snapshot(SYMBOL, snapshot(9), 3)) == ["snapshot", "diff"]


def test_a_break_is_a_gap_a_reset_and_a_new_snapshot() -> None:
    one = session()
    one.snapshot(SYMBOL, snapshot(4), 1)
    one.snapshots_wanted.clear()
    assert kinds(one.frame(diff(5, 6), 2)) == ["diff"]
    messages = one.frame(diff(8, 9), 3)
    assert kinds(messages) == ["feed_gap", "reset"]
    assert messages[-1][2] == MessageFlags.GAP_BEFORE | MessageFlags.LAST_OF_EVENT
    (gap,) = gaps_of(messages)
    assert (gap.reason, gap.symbol, gap.seen, gap.found) == ("sequence", SYMBOL, 6, 8)
    assert one.snapshots_wanted == [SYMBOL]
    assert one.frame(diff(10, 10), 4) == []
    # What came since the break waits too, the diff that showed it included.
    assert kinds(one.snapshot(SYMBOL, snapshot(7), 5)) == ["snapshot", "diff", "diff"]


def test_futures_follow_by_the_id_before() -> None:
    one = session("binance-futures")
    one.snapshot(SYMBOL, snapshot(100), 1)
    assert kinds(one.frame(diff(90, 105, 80), 2)) == ["diff"]
    assert kinds(one.frame(diff(120, 130, 105), 3)) == ["diff"]
    assert kinds(one.frame(diff(140, 150, 131), 4)) == ["feed_gap", "reset"]


def test_repeated_diffs_are_dropped_without_a_gap() -> None:
    one = session()
    one.snapshot(SYMBOL, snapshot(4), 1)
    one.frame(diff(5, 6), 2)
    assert one.frame(diff(5, 6), 3) == []
    assert kinds(one.frame(diff(7, 7), 4)) == ["diff"]


def test_what_waits_for_a_snapshot_is_bounded() -> None:
    one = session()
    for number in range(1, BUFFER_MAX + 11):
        one.frame(diff(number, number), number)
    assert len(one.symbols[SYMBOL].buffer) == BUFFER_MAX
    one.snapshots_wanted.clear()
    assert one.snapshot(SYMBOL, snapshot(5), 1) == [], "the diffs after 5 were dropped"
    assert one.snapshots_wanted == [SYMBOL]


def test_a_frame_that_cannot_be_read_breaks_every_book() -> None:
    one = session()
    one.snapshot(SYMBOL, snapshot(4), 1)
    messages = one.frame(b'{"stream":"btcusdt@depth@100ms","data":{"e":"depthUpdate"', 2)
    assert kinds(messages) == ["feed_gap", "reset"]
    assert gaps_of(messages)[0].reason == "bad_frame"
    one.snapshot(SYMBOL, snapshot(6), 3)
    assert kinds(one.frame(diff(7, 7, bids=[["1e5", "1"]]), 4)) == ["feed_gap", "reset"]


def test_the_end_of_a_connection_is_a_gap_of_every_symbol() -> None:
    one = session()
    one.snapshot(SYMBOL, snapshot(4), 1)
    messages = one.disconnected("stale", "no frame for 30 s", 2)
    assert kinds(messages) == ["feed_gap", "reset"]
    assert one.connected(3, is_continued=False) == []
    assert one.snapshots_wanted == [SYMBOL]
    another = FeedSession(VENUES["binance"](), [SYMBOL])
    assert kinds(another.connected(4, is_continued=True)) == ["feed_gap", "reset"]


def test_a_wrong_checksum_makes_the_venue_send_the_book_again() -> None:
    one = session("kraken", "XBT/USD")
    bids, asks = [["5.0", "1.00", "1.5"]], [["6.0", "1.00", "1.5"]]
    book = json.dumps([1, {"bs": bids, "as": asks}, "book-1000", "XBT/USD"]).encode()
    assert kinds(one.frame(book, 1)) == ["snapshot"]
    update = json.dumps([1, {"b": [["5.0", "2.00", "2.5"]], "c": "1"}, "book-1000", "XBT/USD"]).encode()
    messages = one.frame(update, 2)
    assert gaps_of(messages)[0].reason == "checksum"
    assert [json.loads(frame)["event"] for frame in one.to_send] == ["unsubscribe", "subscribe"]
    assert one.frame(update, 3) == [], "nothing is believed before the new book"
    assert kinds(one.frame(book, 4)) == ["snapshot"]


def test_a_book_that_does_not_come_is_asked_for_again() -> None:
    one = session()
    one.snapshots_wanted.clear()
    one.remind()
    assert one.snapshots_wanted == []
    one.remind()
    assert one.snapshots_wanted == [SYMBOL]


def test_a_missing_match_is_a_gap_that_leaves_the_book_alone() -> None:
    one = session("coinbase", "BTC-USD")
    book = {"type": "snapshot", "product_id": "BTC-USD", "bids": [["1", "1"]], "asks": [["2", "1"]]}
    one.frame(json.dumps(book).encode(), 1)
    match = {
        "type": "match",
        "product_id": "BTC-USD",
        "price": "1.5",
        "size": "2",
        "side": "buy",
        "time": "2021-04-17T16:43:37.089723Z",
    }
    found = [one.frame(json.dumps({**match, "trade_id": number}).encode(), 2) for number in (7, 8, 8, 10)]
    assert [kinds(messages) for messages in found] == [["trade"], ["trade"], [], ["feed_gap", "trade"]]
    assert gaps_of(found[3])[0].reason == "trades"
    assert one.symbols["BTC-USD"].is_live


def test_refusals_are_kept_and_harm_no_book() -> None:
    one = session()
    one.snapshot(SYMBOL, snapshot(4), 1)
    assert one.frame(b'{"error":{"code":2,"msg":"Invalid request"},"id":1}', 2) == []
    assert one.refusals == ["2: Invalid request"]
    assert kinds(one.frame(diff(5, 5), 3)) == ["diff"]


def test_an_event_of_the_encoder_reads_back_field_by_field() -> None:
    one = session()
    one.frame(diff(5, 6, bids=[["100.10", "0.500"], ["99", "0"]]), 7)
    messages = one.snapshot(SYMBOL, snapshot(4), 8)
    books = FedBooks("binance")
    books.apply(messages)
    view = BookEventView(messages[1][1])
    assert (view.venue_id, view.native_seq, view.ingest_ts_ns) == (1, 6, 8)
    assert sides_of(books.book(SYMBOL)) == ([("100.1", "0.5")], [("101", "3")])


decimal_texts = st.decimals(min_value=0, max_value=10**6, places=8, allow_nan=False).map(
    lambda one: f"{one:f}"
)
short_texts = decimal_texts.map(lambda text: text.rstrip("0").rstrip(".") or "0")


@given(levels=st.lists(st.tuples(short_texts, decimal_texts), max_size=20))
@settings(max_examples=effort(100))
def test_numbers_keep_every_digit(levels: list[Level]) -> None:
    encoder = SymbolEncoder(1, SYMBOL, 0)
    packed, _ = encoder.sides(levels, [])
    for (price, size), numbers in zip(levels, PACKED_LEVEL.iter_unpack(packed), strict=True):
        for text, value, scale in zip((price, size), numbers, encoder_scales(encoder), strict=True):
            whole, _, fraction = text.partition(".")
            assert value == int(whole + fraction.ljust(scale, "0"))


def encoder_scales(encoder: SymbolEncoder) -> tuple[int, int]:
    return encoder.price_scale, encoder.size_scale


odd_texts = (
    decimal_texts
    | st.text("0123456789.-+ e\u0661", max_size=24)
    | st.sampled_from(
        [
            "18446744073709551615",
            "18446744073709551616",
            "-9223372036854775807",
            "9223372036854775808",
            ".5",
            "5.",
        ]
    )
)


@example([("0", "1"), (".00000000000000000000", "1")], 0, 0)
@given(st.lists(st.tuples(odd_texts, odd_texts), max_size=3), st.integers(0, 18), st.integers(0, 18))
@settings(max_examples=effort(500))
def test_packed_levels_are_those_of_the_plain_rule_or_refused_like_it(
    levels: list[Level], price_scale: int, size_scale: int
) -> None:
    encoder = SymbolEncoder(1, SYMBOL, 0)
    encoder.price_scale, encoder.size_scale = price_scale, size_scale
    try:
        plain = encoder._plainly(levels)
    except BadNumber:
        with pytest.raises(BadNumber):
            encoder.sides(levels, [])
        return
    found = pack_levels(levels, price_scale, size_scale)
    assert found is not None or any(price.startswith("-") for price, _ in levels)
    if found is not None and found[1] <= price_scale and found[2] <= size_scale:
        assert found == plain
    assert encoder.sides(levels, [])[0] == plain[0]
    assert encoder_scales(encoder) == (max(price_scale, plain[1]), max(size_scale, plain[2]))


@given(
    faults=st.lists(
        st.sampled_from(["keep", "keep", "keep", "drop", "repeat", "late"]), min_size=5, max_size=60
    ),
    pause=st.integers(0, 5),
)
@settings(max_examples=effort(150))
def test_whatever_is_lost_a_live_book_is_that_of_the_venue(faults: list[str], pause: int) -> None:
    """The model: a dict, and update n sets level n % 7 to size n. Snapshots are of the venue's present."""
    one, books = session(), FedBooks("binance")
    truth: dict[int, int] = {}
    history: dict[int, dict[int, int]] = {0: {}}
    late: list[bytes] = []
    since_asked = 0
    for number, fault in enumerate(faults, start=1):
        truth[number % 7] = number
        history[number] = dict(truth)
        frame = diff(number, number, bids=[[f"{100 + number % 7}.0", str(number)]])
        to_send = [] if fault in ("drop", "late") else [frame] * (2 if fault == "repeat" else 1)
        for sent in (*to_send, *late):
            books.apply(one.frame(sent, number))
        late = [frame] if fault == "late" else []
        since_asked += 1
        if one.snapshots_wanted and since_asked > pause:
            one.snapshots_wanted.clear()
            bids = [[f"{100 + place}.0", str(size)] for place, size in truth.items()]
            books.apply(one.snapshot(SYMBOL, snapshot(number, bids), number))
            since_asked = 0
        state = one.symbols[SYMBOL]
        if state.is_live:
            found = {int(float(price)) - 100: int(size) for price, size in sides_of(books.book(SYMBOL))[0]}
            assert found == history[state.last_id]


@pytest.mark.parametrize("name", VENUES)
def test_subscriptions_of_a_venue_are_one_json_document_a_frame(name: str) -> None:
    venue = VENUES[name]()
    frames = venue.subscriptions(["A-B"], ["book", "trades"]) + venue.renewals("A-B")
    assert all(isinstance(json.loads(frame), dict) for frame in frames)
    assert frames or venue.path(["A-B"], ["book"])


def test_levels_that_are_no_text_are_a_gap_of_their_symbol_and_the_session_goes_on() -> None:
    one = FeedSession(VENUES["kraken"](), ["XBT/USD", "ETH/USD"])
    for symbol in ("XBT/USD", "ETH/USD"):
        opening = {"as": [["2.0", "1.00", "1.0"]], "bs": [["1.0", "1.00", "1.0"]]}
        assert kinds(one.frame(msgspec.json.encode([1, opening, "book-1000", symbol]), 1)) == ["snapshot"]
    bad = msgspec.json.encode([1, {"b": [[1, 2, "1.0"]]}, "book-1000", "XBT/USD"])
    assert [gap.symbol for gap in gaps_of(one.frame(bad, 2))] == ["XBT/USD"]
    good = msgspec.json.encode([1, {"b": [["1.5", "1.00", "1.0"]]}, "book-1000", "ETH/USD"])
    assert kinds(one.frame(good, 3)) == ["diff"]


UNREADABLE_FRAMES = {
    "negative time": [1, {"b": [["5.0", "1.00", "-1.5"]]}, "book-1000", "XBT/USD"],
    "no levels": [1, 7, "book-1000", "XBT/USD"],
    "a level of numbers": [1, {"b": [["5.0", "1.00", 1.5]]}, "book-1000", "XBT/USD"],
    "a trade without a price": [1, [["nan", "1.0", "1.5", "b"]], "trade", "XBT/USD"],
    "a trade of less than nothing": [1, [["1.0", "-1.0", "1.5", "b"]], "trade", "XBT/USD"],
    "a trade of a Python number": [1, [["1_0", "1.0", "1.5", "b"]], "trade", "XBT/USD"],
}


@pytest.mark.parametrize("frame", UNREADABLE_FRAMES.values(), ids=list(UNREADABLE_FRAMES))
def test_frames_of_another_shape_are_a_gap_and_the_session_goes_on(frame: list[Any]) -> None:
    one = session("kraken", "XBT/USD")
    book = [1, {"as": [["6.0", "1.00", "1.0"]], "bs": [["5.0", "1.00", "1.0"]]}, "book-1000", "XBT/USD"]
    assert kinds(one.frame(msgspec.json.encode(book), 1)) == ["snapshot"]
    assert kinds(one.frame(msgspec.json.encode(frame), 2)) == ["feed_gap", "reset"]
    assert kinds(one.frame(msgspec.json.encode(book), 3)) == ["snapshot"]


def test_a_waiting_diff_that_cannot_be_read_ends_the_book_of_its_snapshot() -> None:
    one = session()
    one.frame(diff(5, 6, bids=[["1e5", "1"]]), 1)
    one.snapshots_wanted.clear()
    assert kinds(one.snapshot(SYMBOL, snapshot(4), 2)) == ["snapshot", "feed_gap", "reset"]
    assert not one.symbols[SYMBOL].is_live and one.snapshots_wanted == [SYMBOL]
    assert one.snapshot(SYMBOL, snapshot(-4), 3) == [], "no id is negative"
    assert not one.symbols[SYMBOL].is_live and one.snapshots_wanted == [SYMBOL]


def test_futures_go_on_from_a_snapshot_between_two_diffs() -> None:
    one = session("binance-futures")
    one.snapshot(SYMBOL, snapshot(103), 1)
    assert kinds(one.frame(diff(105, 110, 100), 2)) == ["diff"], "it covers all from 101 to 110"


def test_numbers_of_okx_that_begin_anew_are_a_gap_unless_they_name_the_one_before() -> None:
    def frame(action: str, number: int, previous: int) -> bytes:
        row = {"bids": [["1.0", str(number)]], "asks": [], "ts": "1", "seqId": number, "prevSeqId": previous}
        arguments = {"channel": "books", "instId": "A-B"}
        return msgspec.json.encode({"arg": arguments, "action": action, "data": [row]})

    one = session("okex", "A-B")
    assert kinds(one.frame(frame("snapshot", 100, -1), 1)) == ["snapshot"]
    assert kinds(one.frame(frame("update", 101, 100), 2)) == ["diff"]
    assert one.frame(frame("update", 101, 100), 3) == []
    assert kinds(one.frame(frame("update", 3, 101), 4)) == ["diff"]
    assert kinds(one.frame(frame("update", 5, 3), 5)) == ["diff"]
    one.frame(frame("snapshot", 100, -1), 6)
    assert kinds(one.frame(frame("update", 5, 3), 7)) == ["feed_gap", "reset"]
    assert one.to_send


def test_a_book_that_cannot_hold_a_frame_is_a_gap_and_the_session_goes_on() -> None:
    one = session("kraken", "XBT/USD")
    book = [1, {"as": [], "bs": [["5000000000000000000", "1", "1.0"]]}, "book-1000", "XBT/USD"]
    assert kinds(one.frame(msgspec.json.encode(book), 1)) == ["snapshot"]
    finer = [1, {"b": [["5.00", "1", "1.0"]]}, "book-1000", "XBT/USD"]
    assert kinds(one.frame(msgspec.json.encode(finer), 2)) == ["feed_gap", "reset"]
    opening = [1, {"as": [], "bs": [["5.00", "1", "1.0"]]}, "book-1000", "XBT/USD"]
    assert kinds(one.frame(msgspec.json.encode(opening), 3)) == ["snapshot"]
