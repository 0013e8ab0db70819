"""The memory-mapped queue: persisted messages between processes of one host in microseconds.

`Queue.open_publisher` opens the one writer of a directory, `Queue.open_subscriber` a reader. `writer` and
`reader` are the two paths, each four files long; `control`, `segment`, `reader_meta`, `seek_index` and
`index_meta` own one kind of file each, `recovery` what a crash leaves, `workers` and `retention` what runs
beside the writer, `inspect` and `doctor` what is seen from outside.
"""

from everlog.native.queue.ring import MessageView
from everlog.queue.batch import Batch
from everlog.queue.config import WriterConfig
from everlog.queue.fan_in import FanInReader
from everlog.queue.liveness import DisconnectReason, WriterStatus
from everlog.queue.queue import Queue
from everlog.queue.reader import Message, QueueReader, StartMode
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
