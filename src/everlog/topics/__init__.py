"""The topics plane: ordered, named logs that never lose anything silently."""

from everlog.api_types import Discard, Durability, StorageHealth, Tombstone, TopicAccount, TopicType
from everlog.topics.commits import Commit
from everlog.topics.config import EngineSettings, TopicConfig
from everlog.topics.engine import Engine
from everlog.topics.jobs.claims import ClaimRequest
from everlog.topics.records import NewRecord, record_of
from everlog.topics.results import (
    Appended,
    Claimed,
    Diff,
    EngineCounts,
    RecordsDeleted,
    Settled,
    TopicDeleted,
    TopicPut,
)
from everlog.topics.topic import TopicState

__all__ = [
    "Appended",
    "ClaimRequest",
    "Claimed",
    "Commit",
    "Diff",
    "Discard",
    "Durability",
    "Engine",
    "EngineCounts",
    "EngineSettings",
    "NewRecord",
    "RecordsDeleted",
    "Settled",
    "StorageHealth",
    "Tombstone",
    "TopicAccount",
    "TopicConfig",
    "TopicDeleted",
    "TopicPut",
    "TopicState",
    "TopicType",
    "record_of",
]
