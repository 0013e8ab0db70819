"""A delete that only counts: it tells what the delete itself would remove, and changes nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everlog.topics import Engine, record_of
from everlog.topics.config import EngineSettings

TAGS = st.sampled_from(["eu", "eu.1", "us", None])


@given(
    st.lists(TAGS, min_size=1, max_size=30),
    st.integers(0, 8),
    st.none() | st.integers(0, 40),
    st.sampled_from([None, "eu", "eu*", "*"]),
)
def test_a_preview_counts_exactly_what_is_deleted(
    tags: list[str | None], below: int, before_seq: int | None, match: str | None
) -> None:
    if before_seq is None and match is None:
        before_seq = below
    with Engine.open(None, EngineSettings()) as engine:
        engine.append("t", [record_of(1, tag=tag) for tag in tags])
        engine.delete_records("t", before_seq=below)
        before = engine.state("t", touch=False)
        preview = engine.delete_records("t", before_seq=before_seq, match=match, dry_run=True)
        assert engine.state("t", touch=False) == before
        assert (preview.count, preview.head_seq) == (before.count, len(tags))
        assert preview.deleted == engine.delete_records("t", before_seq=before_seq, match=match).deleted
        assert engine.state("t", touch=False).count == before.count - preview.deleted
