"""Queues and clients for tests of bridges: messages in known queues, and answers that get lost on the way."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from everlog.bridge import Progress, QueueToTopic, QueueToTopicSettings
from everlog.client import ApiFailed, Client
from everlog.client.errors import UNREACHABLE
from everlog.client.flows import Send
from everlog.client.wire import Answer
from everlog.queue import Message, Queue, QueueReader
from everlog.queue.reader import copy_message

SEGMENT_SIZE = 1 << 16


def fill(path: Path, payloads: Iterable[bytes], type_id: int = 1) -> None:
    """Append messages to a queue."""
    with Queue.open_publisher(path, segment_size=SEGMENT_SIZE, retention=False) as writer:
        for payload in payloads:
            writer.append(type_id, payload)


def numbers(start: int, stop: int) -> list[bytes]:
    """Payloads that are the numbers themselves."""
    return [b"%d" % number for number in range(start, stop)]


def messages(path: Path) -> list[Message]:
    """Everything in a queue."""
    reader: QueueReader
    with Queue.open_subscriber(path, None) as reader:
        return [copy_message(view) for view in reader]


def forward(client: Client, path: Path, topic: str, **settings: object) -> Progress:
    """Bring a queue across, once."""
    wanted = {"queue": str(path), "topic": topic, "name": "b", "once": True} | settings
    return QueueToTopic(client, QueueToTopicSettings(**wanted)).run()  # type: ignore[arg-type]


class ForgetfulClient(Client):
    """A client whose connection breaks around an append: before it arrives, or before its answer does."""

    def __init__(self, url: str, *, lost_answers: int = 0, lost_requests: int = 0) -> None:
        super().__init__(url)
        self.lost_answers = lost_answers
        self.lost_requests = lost_requests
        self.sends = 0

    def _send(self, step: Send) -> Answer:
        is_append = step.request.startswith(b"POST ") and b'{"records":' in step.request
        self.sends += is_append
        if is_append and self.lost_requests:
            self.lost_requests -= 1
            raise self._broken()
        answer = super()._send(step)
        if is_append and self.lost_answers:
            self.lost_answers -= 1
            raise self._broken()
        return answer

    def _broken(self) -> ApiFailed:
        return ApiFailed(UNREACHABLE, "unreachable", "the connection broke", was_sent=True)
