"""Bridges between queues and topics: each record is forwarded exactly once, whichever side is killed.

Both directions, their state on disk, and the audits of what was forwarded. The queue and the topics server do
not depend on each other; a bridge uses the public interface of both.
"""

from everlog.bridge.base import Progress
from everlog.bridge.queue_to_topic import BatchInDoubt, QueueToTopic, QueueToTopicSettings
from everlog.bridge.rendering import Format
from everlog.bridge.topic_to_queue import PayloadFormat, TopicToQueue, TopicToQueueSettings

__all__ = [
    "BatchInDoubt",
    "Format",
    "PayloadFormat",
    "Progress",
    "QueueToTopic",
    "QueueToTopicSettings",
    "TopicToQueue",
    "TopicToQueueSettings",
]
