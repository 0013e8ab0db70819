"""A start with the heads of frames knows what one with all of the data knows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import Corrupt
from everlog.native.topics.log import FrameBuffer, RecordBatch, Sources, TopicLog
from everlog.topics import record_of
from everlog.topics.storage import layout
from everlog.topics.storage.frame_heads import data_of_heads, heads_of
from everlog.topics.storage.remote import with_marks

TAGS = (None, "", "a", "ab", "long" * 50)
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(TAGS), st.sampled_from((None, "n", "node")), st.text(max_size=40), st.booleans()
    ),
    min_size=1,
    max_size=30,
)


def segment_of(records: list[tuple[str | None, str | None, str, bool]]) -> tuple[bytes, bytes]:
    """Data and index of a segment with these records."""
    sources, log, frames = Sources(), TopicLog(1), FrameBuffer()
    chosen = [
        record_of(text, tag=tag, node=node, meta={"m": text} if has_meta else None)
        for tag, node, text, has_meta in records
    ]
    source = sources.add(None)
    log.append(frames, source, 0, RecordBatch(chosen), 5, 0, None, False)
    sources.set(source, frames.tobytes())
    data, index = FrameBuffer(), FrameBuffer()
    log.copy_to_segment(sources, 1, len(chosen), 0, data, index)
    return data.tobytes(), index.tobytes()


def known(index: bytes, data: object) -> tuple[object, ...]:
    """What a log knows that was loaded from these."""
    log = TopicLog(1)
    unknown = log.load_index(1, index, 1)
    damaged = log.load_frames(1, len(index), data) if unknown else 0  # type: ignore[arg-type]
    tags = {tag: log.find_tag(tag.encode(), False, 10_000).tolist() for tag in TAGS if tag}
    return damaged, log.live_count, log.live_bytes, tags


@given(RECORDS, st.data())
def test_a_log_loaded_from_heads_is_the_one_loaded_from_the_data(
    records: list[tuple[str | None, str | None, str, bool]], draw: st.DataObject
) -> None:
    data, index = segment_of(records)
    marked = bytearray(index)
    for place in draw.draw(st.sets(st.integers(0, len(records) - 1))):
        marked[place * layout.INDEX_ENTRY_SIZE + layout.INDEX_FLAGS] |= layout.INDEX_FLAG_DELETED
    with_deletions = with_marks(data, bytes(marked))
    for kept in (data, with_deletions):  # also marks that are in the data alone
        assert known(index, data_of_heads(heads_of(kept, index), index, len(kept))) == known(index, kept)
    heads = heads_of(data, index)
    assert known(bytes(marked), data_of_heads(heads, bytes(marked), len(data))) == known(bytes(marked), data)


def test_damaged_frames_are_reported_and_damaged_heads_are_refused() -> None:
    data, index = segment_of([("a", None, "x", False), ("b", None, "y", False)])
    damaged = bytearray(data)
    damaged[layout.SEGMENT_TAG_LEN + 1] = 255
    heads = heads_of(bytes(damaged), index)
    assert known(index, data_of_heads(heads, index, len(data)))[0] == 1
    with pytest.raises(Corrupt, match="heads"):
        data_of_heads(heads[:-3], index, len(data))
