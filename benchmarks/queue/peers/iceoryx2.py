"""iceoryx2 through its Python binding: publish-subscribe, and events to wake a sleeper."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from benchmarks.queue.loops import endless
from benchmarks.queue.peers.base import Mode, Peer, ReceiveSide, SendSide, Setup, send_each

BUFFERED_MESSAGES = 1024
WAIT_MAX_S = 1


class Iceoryx2Peer(Peer):
    """Fixed-size samples in shared memory; nothing is dropped (the sender retries)."""

    name = "iceoryx2"
    title = "iceoryx2"
    distribution = "iceoryx2"
    install_command = "pip install iceoryx2"
    spinning_pace_ns = 20_000
    stream_messages = 100_000

    @contextmanager
    def channel(self, directory: object) -> Iterator[str]:
        """A service name that is not in use; iceoryx2 keeps its files in its own places."""
        yield f"everlog-benchmark/{uuid4().hex}"

    @contextmanager
    def sender(self, setup: Setup) -> Iterator[SendSide]:
        """Loan a sample, fill it, send it; in the asleep mode notify the listener as well."""
        import iceoryx2

        node = _node()
        service = _service(node, setup)
        publisher = (
            service.publisher_builder()
            .backpressure_strategy(iceoryx2.BackpressureStrategy.RetryUntilDelivered)
            .create()
        )
        loan, fill, size = publisher.loan_uninit, ctypes.memmove, setup.payload_bytes
        notify = _event(node, setup).notifier_builder().create().notify

        def send(payload: bytes) -> None:
            sample = loan()
            fill(sample.payload_ptr, payload, size)
            sample.assume_init().send()

        def send_silently(payload: bytes, _: int) -> None:
            send(payload)

        def send_and_notify(payload: bytes, _: int) -> None:
            send(payload)
            notify()

        yield SendSide(
            send=send_and_notify if setup.mode is Mode.ASLEEP else send_silently,
            send_all=send_each(send),
        )

    @contextmanager
    def receiver(self, setup: Setup) -> Iterator[ReceiveSide]:
        """Poll `receive`; in the asleep mode sleep in the listener first."""
        import iceoryx2

        node = _node()
        subscriber = _service(node, setup).subscriber_builder().buffer_size(BUFFERED_MESSAGES).create()
        listener = _event(node, setup).listener_builder().create()
        receive = subscriber.receive
        content_type: Any = ctypes.c_uint8 * setup.payload_bytes
        longest = iceoryx2.Duration.from_secs(WAIT_MAX_S)

        def take() -> Any:
            sample = receive()
            if sample is None:
                return None
            content = content_type.from_address(sample.payload_ptr)
            content.sample = sample  # the sample gives its memory back when it is collected
            return content

        asleep = setup.mode is Mode.ASLEEP
        yield ReceiveSide(
            take=take,
            wait=(lambda: listener.timed_wait(longest)) if asleep else None,
            messages=endless(take),
        )


def _node() -> Any:
    import iceoryx2

    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    return iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)


def _service(node: Any, setup: Setup) -> Any:
    import iceoryx2

    return (
        node.service_builder(iceoryx2.ServiceName.new(setup.address))
        .publish_subscribe(ctypes.c_uint8 * setup.payload_bytes)
        .enable_safe_overflow(False)
        .subscriber_max_buffer_size(BUFFERED_MESSAGES)
        .subscriber_max_borrowed_samples(8)
        .open_or_create()
    )


def _event(node: Any, setup: Setup) -> Any:
    import iceoryx2

    return node.service_builder(iceoryx2.ServiceName.new(setup.address)).event().open_or_create()
