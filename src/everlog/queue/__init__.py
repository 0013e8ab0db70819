"""The memory-mapped queue: persisted messages between processes of one host in microseconds."""

from everlog.native.queue import MessageView
from everlog.queue.batch import Batch
from everlog.queue.config import WriterConfig
from everlog.queue.fan_in import FanInReader
from everlog.queue.liveness import DisconnectReason, WriterStatus
from everlog.queue.message import Message
from everlog.queue.queue import Queue
from everlog.queue.reader import QueueReader, StartMode
from everlog.queue.recovery import Damage, RecoveryReport
from everlog.queue.wait import BusySpin, Sleep, SpinThenPark, WaitStrategy
from everlog.queue.writer import QueueWriter, WriterMetrics

__all__ = [
    "Batch",
    "BusySpin",
    "Damage",
    "DisconnectReason",
    "FanInReader",
    "Message",
    "MessageView",
    "Queue",
    "QueueReader",
    "QueueWriter",
    "RecoveryReport",
    "Sleep",
    "SpinThenPark",
    "StartMode",
    "WaitStrategy",
    "WriterConfig",
    "WriterMetrics",
    "WriterStatus",
]
