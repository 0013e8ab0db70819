"""`Producer`: many records into one topic, in order, none lost silently and none twice.

Owns batching, the bound on the buffer, and the thread that sends. Records are encoded by `send`, so later
changes of the objects have no effect. Batches are sent one after the other, each with its own idempotency
key, and are retried only while the server is sure to remember the key.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from everlog import tracing
from everlog.api_types import Appended, TopicSettings
from everlog.client import calls
from everlog.client.arguments import checked_settings
from everlog.client.encoding import encode
from everlog.client.errors import ApiFailed, BufferFull, ProducerFailed
from everlog.client.flows import Call
from everlog.client.retrying import RetryPolicy
from everlog.client.sync_client import Client, client_of
from everlog.client.wire import topic_path
from everlog.errors import Closed, EverlogError, InvalidConfig, InvalidRecord, RecordTooLarge

MAX_RECORDS: Final = 10_000
MAX_RECORD_BYTES: Final = 1 << 20
MAX_TAG_BYTES: Final = 256
MAX_NODE_BYTES: Final = 128
MAX_META_BYTES: Final = 16 << 10
MAX_META_KEYS: Final = 64
WINDOW_MS_DEFAULT: Final = 120_000

# What stands between two records of a body, and what a record costs besides its text.
_BETWEEN: Final = b'},{"data":'
_COST_BYTES: Final = len(_BETWEEN) + 48


class _Batch(NamedTuple):
    number: int
    texts: list[bytes]
    size_bytes: int


class Producer:
    """Sends records to one topic from any number of threads.

    `send` returns as soon as the record is buffered; `flush` and `close` wait until all are acknowledged.
    When the buffer is full, `send` waits: a server that is slower than the program slows it down.
    After a batch could not be delivered every call raises `ProducerFailed`.
    """

    def __init__(
        self,
        client: Client | str,
        topic: str,
        *,
        key: str | None = None,
        batch_records: int = MAX_RECORDS,
        batch_bytes: int = 1 << 20,
        linger_s: float = 0.005,
        max_buffered_bytes: int = 64 << 20,
        deadline_s: float = 60.0,
        config: TopicSettings | None = None,
        on_delivered: Callable[[Appended], None] | None = None,
    ) -> None:
        _check(batch_records, batch_bytes, linger_s, max_buffered_bytes)
        self.topic = topic
        self._owns_client = isinstance(client, str)
        self._client = client_of(client, key)
        self._batch_records = batch_records
        self._batch_bytes = batch_bytes
        self._linger_s = linger_s
        self._max_buffered_bytes = max_buffered_bytes
        self._deadline_s = deadline_s
        self._config = None if config is None else checked_settings(config)
        self._on_delivered = on_delivered
        self._traceparent = tracing.quick_current()
        self._id = calls.new_key()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._texts: list[bytes] = []
        self._texts_bytes = 0
        self._opened_s = 0.0
        self._sealed: deque[_Batch] = deque()
        self._batches = 0
        self._sealed_bytes = 0
        self._sealed_records = 0
        self._delivered = 0
        self._failure: EverlogError | None = None
        self._is_closing = False
        self._is_of_parent = False
        _producers.add(self)
        self._thread = threading.Thread(target=_send_all, args=(self,), name=f"producer-{topic}", daemon=True)
        self._thread.start()
        self._at_exit = _closer(self)
        atexit.register(self._at_exit)

    def __repr__(self) -> str:
        return f"<Producer for {self.topic} on {self._client.address}: {self._delivered} records delivered>"

    @property
    def delivered(self) -> int:
        """How many records the server has confirmed."""
        return self._delivered

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait or are being sent."""
        return self._sealed_bytes + self._texts_bytes

    # --- Sending -------------------------------------------------------------------------------------------

    def send(
        self,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: dict[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Buffer a record; waits while there is no room, for `timeout_s` at most (then `BufferFull`)."""
        text = encode(data)
        traceparent = self._traceparent()
        if traceparent is not None:
            meta = {tracing.TRACEPARENT: traceparent, **(meta or {})}
        if len(text) > MAX_RECORD_BYTES or tag is not None or node is not None or meta is not None:
            text = _with_fields(text, tag, node, meta)
        with self._lock:
            if not self._texts:
                self._begin_batch(timeout_s)
            texts = self._texts
            texts.append(text)
            self._texts_bytes = size = self._texts_bytes + len(text) + _COST_BYTES
            if size >= self._batch_bytes or len(texts) >= self._batch_records:
                self._seal()

    def send_many(self, values: Iterable[Any]) -> None:
        """Buffer records that have only data."""
        send = self.send
        for value in values:
            send(value)

    def _begin_batch(self, timeout_s: float | None) -> None:
        """Wait until another batch may be begun; called with the lock held.

        Room is asked for once a batch, for a full one: what is buffered never passes the bound by more than
        the last record of a batch.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._check_alive()
            if self._texts or self._sealed_bytes + self._batch_bytes <= self._max_buffered_bytes:
                break
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise BufferFull(
                    f"{self._sealed_bytes} bytes for topic {self.topic} wait for the server; not enough were "
                    f"confirmed within {timeout_s:g} s"
                )
            self._changed.wait(left_s)
        if not self._texts:
            self._opened_s = time.monotonic()
            self._changed.notify_all()

    def _check_alive(self) -> None:
        self._check_owner()
        if self._failure is not None:
            raise self._failed()
        if self._is_closing:
            raise Closed(f"the producer for topic {self.topic} is closed; make a new one")

    def _check_owner(self) -> None:
        if self._is_of_parent:
            raise Closed(
                f"the producer for topic {self.topic} belongs to the parent process, as do its buffered "
                "records; make a new one after fork"
            )

    def _after_fork(self) -> None:
        """In a forked child no thread sends, and the locks may be held forever."""
        self._is_of_parent = True
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._texts, self._texts_bytes = [], 0
        self._sealed.clear()
        atexit.unregister(self._at_exit)

    def _failed(self) -> ProducerFailed:
        undelivered = self._sealed_records - self._delivered
        count = "1 record was" if undelivered == 1 else f"{undelivered} records were"
        error = ProducerFailed(f"{count} not delivered to topic {self.topic}: {self._failure}", undelivered)
        error.__cause__ = self._failure
        return error

    def _seal(self) -> None:
        """Close the current batch; called with the lock held."""
        texts = self._texts
        if not texts:
            return
        self._batches += 1
        self._sealed.append(_Batch(self._batches, texts, self._texts_bytes))
        self._sealed_bytes += self._texts_bytes
        self._sealed_records += len(texts)
        self._texts, self._texts_bytes = [], 0
        self._changed.notify_all()

    # --- Ending --------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all buffered records are acknowledged; raises `ProducerFailed` if that fails."""
        self._check_owner()
        with self._lock:
            self._seal()
            target = self._sealed_records
            done = self._changed.wait_for(
                lambda: self._failure is not None or self._delivered >= target, timeout_s
            )
            if self._failure is not None:
                raise self._failed()
            if not done:
                raise BufferFull(
                    f"{target - self._delivered} records for topic {self.topic} are not confirmed after "
                    f"{timeout_s:g} s; they are still being sent"
                )

    def close(self) -> None:
        """Deliver the buffered records and stop; raises `ProducerFailed` if that fails."""
        if self._is_of_parent:
            return  # the parent delivers
        with self._lock:
            is_first, self._is_closing = not self._is_closing, True
            self._seal()
            self._changed.notify_all()
        self._thread.join()
        atexit.unregister(self._at_exit)
        if self._owns_client:
            self._client.close()
        if is_first and self._failure is not None:
            raise self._failed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ProducerFailed as failed:
            if error is None:
                raise
            error.add_note(str(failed))

    # --- The thread ----------------------------------------------------------------------------------------

    def _next_batch(self) -> _Batch | None:
        """Wait for a batch that is full or has waited for `linger_s`; None at the end."""
        with self._lock:
            while not self._sealed:
                if self._texts:
                    left_s = self._linger_s - (time.monotonic() - self._opened_s)
                    if left_s <= 0:
                        self._seal()
                    else:
                        self._changed.wait(left_s)
                elif self._is_closing:
                    return None
                else:
                    self._changed.wait()
            return self._sealed.popleft()

    def _deliver_all(self) -> None:
        retry: RetryPolicy | None = None
        while (batch := self._next_batch()) is not None:
            try:
                if retry is None:
                    retry = self._retry_policy()
                appended = self._client.call(self._call(batch, retry), retry=retry)
            except EverlogError as error:
                self._stop(error)
                return
            with self._lock:
                self._delivered += len(batch.texts)
                self._sealed_bytes -= batch.size_bytes
                self._changed.notify_all()
            if self._on_delivered is not None:
                self._on_delivered(appended)

    def _call(self, batch: _Batch, retry: RetryPolicy) -> Call[Appended]:
        tail = b'}],"idempotency_key":"%b-%d"' % (self._id.encode(), batch.number)
        if self._config is not None:
            tail += b',"config":' + encode(self._config)
        body = b'{"records":[{"data":' + _BETWEEN.join(batch.texts) + tail + b"}"
        path = topic_path(self.topic) + "?return_seqs=false"
        return Call("POST", path, Appended, body, may_repeat=retry.deadline_s > 0)

    def _retry_policy(self) -> RetryPolicy:
        """How long a batch may be tried: half of the time for which the server remembers its key."""
        window_ms = (self._config or {}).get("idempotency_window_ms", WINDOW_MS_DEFAULT)
        try:
            state = self._client.topic(self.topic, touch=False)
            window_ms = state.config.idempotency_window_ms
        except ApiFailed as error:
            # Not there yet, or not to be read by this key, which may still write.
            if error.status not in (403, 404):
                raise
        return replace(self._client.retry, deadline_s=min(self._deadline_s, window_ms / 2000))

    def _stop(self, error: EverlogError) -> None:
        with self._lock:
            # Counted as not delivered; the next call finds an empty batch and looks why.
            self._seal()
            self._failure = error
            self._changed.notify_all()


def _send_all(producer: Producer) -> None:
    try:
        producer._deliver_all()
    except BaseException as error:
        # A bug here or in the callback: waiting callers must get an error.
        failure = EverlogError(f"the thread of the producer ended: {error!r}")
        failure.__cause__ = error
        producer._stop(failure)


def _closer(producer: Producer) -> Callable[[], None]:
    """A function that delivers what is still buffered when the program exits."""
    reference = weakref.ref(producer)

    def close() -> None:
        still_there = reference()
        if still_there is not None:
            still_there.close()

    return close


def _check(batch_records: int, batch_bytes: int, linger_s: float, max_buffered_bytes: int) -> None:
    if not 1 <= batch_records <= MAX_RECORDS:
        raise InvalidConfig(f"batch_records is {batch_records}; it must be from 1 to {MAX_RECORDS}")
    if batch_bytes < 1 or linger_s < 0:
        raise InvalidConfig(f"batch_bytes is {batch_bytes} and linger_s is {linger_s}; both must be positive")
    if max_buffered_bytes < 2 * batch_bytes:
        raise InvalidConfig(
            f"max_buffered_bytes is {max_buffered_bytes}, less than two batches ({batch_bytes}); raise it"
        )


def _with_fields(text: bytes, tag: str | None, node: str | None, meta: dict[str, Any] | None) -> bytes:
    """A record with more than data. Limits are checked here, before the record is part of a batch."""
    meta_text = b"" if meta is None else encode(meta)
    if len(text) + len(meta_text) > MAX_RECORD_BYTES:
        raise RecordTooLarge(
            f"data and meta are {len(text) + len(meta_text)} bytes of JSON; the limit is {MAX_RECORD_BYTES}"
        )
    if len(meta_text) > MAX_META_BYTES or (meta is not None and len(meta) > MAX_META_KEYS):
        raise InvalidRecord(f"meta is over {MAX_META_BYTES} bytes or {MAX_META_KEYS} keys")
    for name, value, limit in (("tag", tag, MAX_TAG_BYTES), ("node", node, MAX_NODE_BYTES)):
        if value is not None:
            if len(value.encode()) > limit:
                raise InvalidRecord(f"{name} is over {limit} bytes: {value[:40]!r}...")
            text += b',"%b":%b' % (name.encode(), encode(value))
    return text if meta is None else text + b',"meta":' + meta_text


_producers: Final[weakref.WeakSet[Producer]] = weakref.WeakSet()


def _after_fork() -> None:
    for producer in _producers:
        producer._after_fork()


os.register_at_fork(after_in_child=_after_fork)
