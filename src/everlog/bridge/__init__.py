"""Bridges between queues and topics: records cross exactly once, whichever side is killed.

Owns both directions, what they keep on disk, and the audits of what crossed. Uses the queue and the client of
a topics server from outside; neither knows of the other.
"""

from everlog.bridge.errors import BatchInDoubt
from everlog.bridge.queue_to_topic import QueueToTopic, QueueToTopicSettings
from everlog.bridge.rendering import Format
from everlog.bridge.running import Progress
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
