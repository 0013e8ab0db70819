"""One request to a topics server, with or without trying again. Owns only that choice."""

from __future__ import annotations

from typing import Final, TypeVar

from everlog.client import Client, RetryPolicy, flows
from everlog.client.calls import Call
from everlog.client.flows import Wishes

T = TypeVar("T")

_ONCE: Final = RetryPolicy(deadline_s=0)


def send(client: Client, wanted: Call[T]) -> T:
    """Carry out a call, trying again as the client does."""
    return client._run(flows.call(client._wishes, wanted))


def send_once(client: Client, wanted: Call[T]) -> T:
    """Carry out a call with a single try: whoever asks wants to know what became of it before another one."""
    plain = client._wishes
    return client._run(flows.call(Wishes(plain.writer, _ONCE, plain.timeout_s, plain.now_ns), wanted))
