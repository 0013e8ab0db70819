"""Appends each line you type to a queue.

    python examples/quickstart_publisher.py hello

Open a second terminal with `quickstart_subscriber.py hello`. End with Ctrl-D.
"""

from __future__ import annotations

import sys

from everlog.queue import Queue

LINE_TYPE_ID = 1


def main(path: str = "hello") -> None:
    """Append lines from the standard input until it ends."""
    with Queue.open_publisher(path, segment_size=1024 * 1024) as writer:
        for line in sys.stdin:
            seq = writer.append(LINE_TYPE_ID, line.rstrip("\n").encode())
            print(f"appended message {seq}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
