"""The native half of `everlog.queue`: mappings of its files, reading and appending messages.

`Mapping` also serves the topics plane, which maps its log files with it. The module `ring` is the compiled
code; its names are imported from here.
"""

from everlog.native.queue.ring import (
    LAYOUT,
    Mapping,
    MessageView,
    OneThread,
    RingReader,
    RingWriter,
    crc32,
    crc32_matches,
    find_record,
    join_payloads,
    notify,
    pad_segment,
    publish_head,
    read_head,
    run_offsets,
    scan_segment,
    seal_segment,
    view_at,
    wait_any,
    wake_all,
)

__all__ = [
    "LAYOUT",
    "Mapping",
    "MessageView",
    "OneThread",
    "RingReader",
    "RingWriter",
    "crc32",
    "crc32_matches",
    "find_record",
    "join_payloads",
    "notify",
    "pad_segment",
    "publish_head",
    "read_head",
    "run_offsets",
    "scan_segment",
    "seal_segment",
    "view_at",
    "wait_any",
    "wake_all",
]
