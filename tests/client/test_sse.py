"""Server-sent events are the same events however the bytes were cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everlog.client.sse import Event, EventParser

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=8)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


# What an event looks like whatever order its fields came in: name, lines of data, id.
Seen = tuple[str, list[str], str | None]


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[Seen]]:
    """A stream as a server may write it, and what is in it."""
    text, seen = draw(st.sampled_from(["", "\ufeff"])), []
    end = draw(ENDS)
    for _ in range(draw(st.integers(0, 5))):
        name, event_id = draw(st.one_of(st.none(), WORDS)), draw(st.one_of(st.none(), WORDS))
        lines = draw(st.lists(WORDS, max_size=3))
        fields = [f"data: {line}" for line in lines] + [f": {draw(WORDS)}", "retry: 2000"]
        fields += [f"event: {name}"] * (name is not None) + [f"id: {event_id}"] * (event_id is not None)
        text += "".join(field + end for field in draw(st.permutations(fields))) + end
        if lines:
            seen.append((name or "message", sorted(lines), event_id))
    return text.encode(), seen


def parsed(pieces: list[bytes]) -> list[Event]:
    parser = EventParser()
    # A carriage return at the very end may be half of a line break: one more comment decides.
    return [event for piece in [*pieces, b":\n"] for event in parser.feed(piece)]


@given(streams(), st.data())
def test_the_cuts_between_pieces_change_nothing(
    stream: tuple[bytes, list[Seen]], data: st.DataObject
) -> None:
    text, wanted = stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parsed([text])
    assert parsed(pieces) == whole
    assert parsed([text[place : place + 1] for place in range(len(text))]) == whole
    found = [(event.name, sorted(event.data.decode().split("\n")), event.event_id) for event in whole]
    assert found == wanted


def test_an_event_has_a_name_data_and_an_id() -> None:
    assert parsed([b'retry: 2000\n\nevent: record\ndata: {"a":1}\nid: x\n\n: hb\n\ndata:y\ndata: z\n\n']) == [
        Event("record", b'{"a":1}', "x"),
        Event("message", b"y\nz"),
    ]


def test_an_event_that_is_not_complete_is_none_yet() -> None:
    parser = EventParser()
    assert parser.feed(b"data: 1\n") == []
    assert parser.feed(b"\r") == []
    assert parser.feed(b"\n") == [Event("message", b"1")]


def test_a_long_line_that_comes_in_pieces_takes_time_in_proportion_to_its_length() -> None:
    parser = EventParser()
    piece = b"x" * 65_536
    # A search that tries every start of an unfinished line would take hours for this one.
    assert [parser.feed(part) for part in (b"data: ", *[piece] * 64)] == [[]] * 65
    assert [len(event.data) for event in parser.feed(b"\n\n")] == [64 * len(piece)]
