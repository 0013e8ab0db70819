"""The walk along a row of readers: who gets the bytes, whose cursor moves, and where it stops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.native.live_readers import LiveReader, Place, Row
from tests.native.outlets import OutletPair

DATA = b"the same for everybody"
FROM_SEQ, TO_SEQ, HEAD_SEQ, EPOCH, NOW_S = 7, 9, 9, 3, 55.5
READERS_PER_LOOK = 8
TIME_ENOUGH_NS = 1 << 60

WAYS = ("clear", "paused", "holding", "shut", "full", "none")


class Reader(LiveReader):
    """A reader with a client at its other end."""

    def __init__(self, pair: OutletPair) -> None:
        self.pair = pair
        self.filled_bytes = 0


class OtherReader(Reader):
    """A reader for whom the same records are written in another way."""


class Stranger:
    """Somebody in the row who is no reader at all."""


@dataclass(frozen=True)
class Spec:
    """A reader as the model knows it."""

    seq: int = FROM_SEQ
    epoch: int = EPOCH
    wishes: tuple[str, ...] = ("a",)
    way: str = "clear"
    is_at_ease: bool = True
    is_other: bool = False
    name: str = "t"

    @property
    def gets_it(self) -> bool:
        """Whether it may be served without asking it."""
        return (
            self.is_at_ease
            and not self.is_other
            and (self.name, self.seq, self.epoch, self.wishes) == ("t", FROM_SEQ, EPOCH, ("a",))
        )


SPECS = st.lists(
    st.one_of(
        st.builds(Spec),
        st.builds(
            Spec,
            seq=st.sampled_from([FROM_SEQ, FROM_SEQ + 1]),
            epoch=st.sampled_from([EPOCH, EPOCH + 1]),
            wishes=st.sampled_from([("a",), ("b",)]),
            way=st.sampled_from(WAYS),
            is_at_ease=st.booleans(),
            is_other=st.booleans(),
            name=st.sampled_from(["t", "u"]),
        ),
        st.just(None),
    ),
    max_size=20,
)


def made_reader(spec: Spec, pair: OutletPair) -> Reader:
    """A reader as its spec says; its wishes are an object of its own."""
    reader = OtherReader(pair) if spec.is_other else Reader(pair)
    reader.wishes = tuple(iter(spec.wishes))
    reader.at_ease = Place(spec.name, b"...", spec.seq, spec.epoch, spec.seq) if spec.is_at_ease else None
    reader.outlet = None if spec.way == "none" else pair.outlet
    if spec.way == "paused":
        pair.outlet.is_write_paused = True
    elif spec.way == "holding":
        pair.outlet.write(bytearray(b"through the transport, which may hold it"))
    elif spec.way == "shut":
        pair.outlet.shut_outlet()
    elif spec.way == "full":
        reader.filled_bytes = pair.fill()
    return reader


@contextmanager
def made_row(specs: list[Spec | None]) -> Iterator[list[Reader | Stranger]]:
    """Readers with sockets, which are closed at the end."""
    with ExitStack() as stack:
        readers: list[Reader | Stranger] = []
        for spec in specs:
            if spec is None:
                readers.append(Stranger())
            else:
                pair = OutletPair.over_unix()
                stack.callback(pair.close)
                readers.append(made_reader(spec, pair))
        yield readers


def twin(specs: list[Spec | None], looks_in_time: int) -> tuple[int, int | None]:
    """How far the walk gets, and with whom it gets stuck; in plain Python."""
    for number, spec in enumerate(specs):
        if spec is None or not spec.gets_it or spec.way not in ("clear", "full"):
            return number, None
        if spec.way == "full":
            return number + 1, number
        served = number + 1
        if served % READERS_PER_LOOK == 0 and served // READERS_PER_LOOK > looks_in_time:
            return served, None
    return len(specs), None


def standing_at_ease() -> LiveReader:
    """Somebody who is not in the row, at the place where the data begins."""
    reader = Reader.__new__(Reader)
    reader.at_ease = Place("t", b'"t"', FROM_SEQ, EPOCH, FROM_SEQ)
    reader.wishes = ("a",)
    return reader


def walk(row: Row, first: LiveReader, looks_in_time: int = 1000) -> LiveReader | None:
    """Let the row go on; the time is over after so many looks at the clock."""
    looks = iter(range(1, 1 + 1000))
    stuck: LiveReader | None = row.pass_on(
        DATA, first, TO_SEQ, HEAD_SEQ, NOW_S, lambda: next(looks), looks_in_time + 1
    )
    return stuck


@settings(max_examples=150, deadline=None)
@given(specs=SPECS, looks_in_time=st.integers(0, 2))
def test_the_walk_serves_whom_the_twin_serves(specs: list[Spec | None], looks_in_time: int) -> None:
    with made_row(specs) as readers:
        row = Row("t", readers)
        stuck = walk(row, standing_at_ease(), looks_in_time)
        position, stuck_at = twin(specs, looks_in_time)
        assert row.position == position
        assert stuck is (None if stuck_at is None else readers[stuck_at])
        assert row.peek() is (readers[position] if position < len(readers) else None)
        for number, (reader, spec) in enumerate(zip(readers, specs, strict=True)):
            if isinstance(reader, Stranger) or spec is None:
                continue
            reader.pair.read(1 << 20)
            place, is_served = reader.at_ease, number < position
            if place is not None:
                assert (place.seq, place.epoch) == (TO_SEQ if is_served else spec.seq, spec.epoch)
                assert place.head_seq == (HEAD_SEQ if is_served else spec.seq)
            assert reader.output_s == (NOW_S if is_served else 0.0)
            if spec.way == "clear":
                assert reader.pair.received == (DATA if is_served else b"")
                assert reader.pair.outlet.written_bytes == (len(DATA) if is_served else 0)


def test_others_are_compared_with_where_the_first_one_stood() -> None:
    with made_row([Spec(), Spec()]) as readers:
        first = readers[0]
        assert isinstance(first, Reader)
        row = Row("t", readers)
        assert walk(row, first) is None
        assert row.position == 2, "the second stands where the first stood before"


def test_what_a_reader_that_is_stuck_did_not_get_is_finished_by_its_owner() -> None:
    with made_row([Spec(way="full"), Spec()]) as readers:
        slow, quick = readers
        assert isinstance(slow, Reader) and isinstance(quick, Reader)
        row = Row("t", readers)
        assert walk(row, standing_at_ease()) is slow
        slow.pair.outlet.finish(DATA, row.sent_bytes)
        assert walk(row, standing_at_ease()) is None
        slow.pair.drain(slow.filled_bytes + len(DATA))
        quick.pair.drain(len(DATA))
        assert slow.pair.received.endswith(DATA) and quick.pair.received == DATA


def test_a_client_that_has_gone_is_left_to_its_transport() -> None:
    with made_row([Spec(), Spec()]) as readers:
        gone, there = readers
        assert isinstance(gone, Reader) and isinstance(there, Reader)
        gone.pair.client.close()
        row = Row("t", readers)
        assert walk(row, standing_at_ease()) is gone
        assert row.sent_bytes == 0 and not gone.pair.outlet.is_direct
        gone.pair.outlet.finish(DATA, 0)
        assert gone.pair.transport.error is not None
        assert walk(row, standing_at_ease()) is None
        there.pair.drain(len(DATA))


def test_equal_wishes_become_the_same_object() -> None:
    with made_row([Spec(), Spec()]) as readers:
        row, first = Row("t", readers), standing_at_ease()
        row.pass_on(DATA, first, TO_SEQ, HEAD_SEQ, NOW_S, lambda: 0, TIME_ENOUGH_NS)
        assert all(isinstance(reader, Reader) and reader.wishes is first.wishes for reader in readers)


def test_without_anybody_at_ease_nothing_is_passed() -> None:
    with made_row([Spec()]) as readers:
        row, first = Row("t", readers), standing_at_ease()
        first.at_ease = None
        assert walk(row, first) is None
        assert row.position == 0


def test_a_row_is_walked_by_hand_as_well() -> None:
    readers = [Stranger(), Stranger()]
    row = Row("t", readers)
    assert (row.name, row.position, row.peek()) == ("t", 0, readers[0])
    row.step()
    assert row.peek() is readers[1]
    row.step()
    assert (row.position, row.peek()) == (2, None)


def test_a_place_keeps_numbers_of_64_bits_and_refuses_others() -> None:
    place = Place("t", b'"t"', 2**64 - 1, 1, 2**64 - 1)
    assert (place.seq, place.head_seq, place.is_first) == (2**64 - 1, 2**64 - 1, True)
    with pytest.raises(OverflowError):
        place.seq = 2**64
