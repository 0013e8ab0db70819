"""The verdict on a batch in doubt is right or unknown, never wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.api_types import RawDiff, RawRecord
from everlog.bridge import in_doubt
from everlog.bridge.in_doubt import Verdict, resolve_in_doubt
from everlog.bridge.state import VERSION, Plan, QueueToTopicState
from everlog.client import Client

STATE = QueueToTopicState(VERSION, "b", "id", "t")
PAGE = 3


@dataclass
class ModelTopic:
    """A topic as a list: who wrote each seq, and which of them can still be read."""

    nodes: list[str] = field(default_factory=list)
    dead: set[int] = field(default_factory=set)

    def append(self, node: str, count: int) -> None:
        """Give out seqs."""
        self.nodes += [node] * count

    def read(self, client: Any, topic: str, from_seq: int, **_: object) -> RawDiff:
        """A page of what is behind a cursor."""
        head = len(self.nodes)
        start = 0 if from_seq > head else from_seq
        live = [seq for seq in range(start + 1, head + 1) if seq not in self.dead]
        page = live[:PAGE]
        end = page[-1] if len(live) > PAGE else head
        records = [RawRecord(seq, 0, node=self.nodes[seq - 1]) for seq in page]
        return RawDiff(records, end, head, 1, end == head)


STEPS = st.lists(
    st.tuples(st.sampled_from(("other", "batch", "hole")), st.integers(1, 6)), min_size=0, max_size=8
)


@given(
    before=st.integers(0, 4),
    steps=STEPS,
    count=st.integers(1, 6),
    deletions=st.sets(st.integers(1, 60), max_size=30),
    recreated=st.booleans(),
)
def test_the_verdict_is_never_wrong(
    before: int, steps: list[tuple[str, int]], count: int, deletions: set[int], recreated: bool
) -> None:
    topic = ModelTopic()
    topic.append("other" if recreated else STATE.node, before)
    plan = Plan(0, count - 1, count, (0, 64), before + 50 if recreated else before, 0)
    landed: range | None = None
    for kind, length in steps:
        first = len(topic.nodes) + 1
        if kind == "batch" and landed is None:
            topic.append(STATE.node, count)
            landed = range(first, first + count)
        elif kind == "hole":
            topic.append("hole", length)
            topic.dead |= set(range(first, first + length))
        else:
            topic.append("other", length)
    topic.dead |= {seq for seq in deletions if seq <= len(topic.nodes)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_doubt, "read_sources", topic.read)
        finding = resolve_in_doubt(Client(), STATE, plan)
    assert finding.topic_head == len(topic.nodes)
    if finding.verdict is Verdict.LANDED:
        assert landed is not None
    elif finding.verdict is Verdict.ABSENT:
        assert landed is None
    else:
        assert landed is None or set(landed) <= topic.dead, "a live record of the batch proves that it came"


def test_a_topic_that_is_not_there_holds_no_batch(client: Client) -> None:
    state = QueueToTopicState(VERSION, "b", "id", "absent")
    finding = resolve_in_doubt(client, state, Plan(0, 9, 10, (0, 64), 5, 0))
    assert (finding.verdict, finding.topic_head) == (Verdict.ABSENT, 0)
