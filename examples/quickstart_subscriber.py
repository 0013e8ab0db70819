"""Prints the messages of a queue as they come, and remembers where it was.

    python examples/quickstart_subscriber.py hello [NAME]

Kill it in whatever way you like, append some more, and start it again: it goes on after the last
message it committed. Give a second one another name, and both get every message.
"""

from __future__ import annotations

import sys
import time

from everlog.queue import Queue

POLL_S = 0.1


def main(path: str = "hello", name: str = "subscriber") -> None:
    """Print and commit messages for ever."""
    while (reader := Queue.try_open_subscriber(path, name)) is None:
        time.sleep(POLL_S)  # the queue does not exist yet
    with reader:
        while reader.wait():
            for message in reader:
                print(message.seq, bytes(message).decode(), flush=True)
            reader.commit()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        print("good-bye")
