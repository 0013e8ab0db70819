"""Trace context: which trace a request, a record or a job belongs to, as W3C `traceparent`.

Owns the context of the code that runs, and the spans for OpenTelemetry. That is used if the program has
loaded it; without it the context is passed on all the same, from a job to what its handler appends.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Final, Literal

from everlog.errors import InvalidConfig

TRACEPARENT: Final = "traceparent"
"""The header of a request and the member of `meta`."""
SpanKind = Literal["client", "consumer", "server"]
_FORM: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?"
)
API: Final = "opentelemetry.trace"
"""The module that a program with OpenTelemetry has loaded."""
_CHARS_MAX: Final = 200  # 55 as it is today; later versions may append to it
_current: ContextVar[str | None] = ContextVar("everlog_traceparent", default=None)


class TraceContext:
    """A traceparent that is valid."""

    __slots__ = ("flags", "span_id", "text", "trace_id")

    def __init__(self, text: str, trace_id: str, span_id: str, flags: str) -> None:
        self.text = text
        self.trace_id = trace_id
        self.span_id = span_id
        self.flags = flags

    @property
    def is_sampled(self) -> bool:
        """Whether spans of this trace are kept somewhere."""
        return bool(int(self.flags, 16) & 1)


def parse(value: object) -> TraceContext | None:
    """Read a traceparent; None if it is none. As the standard says, a bad one is ignored, not refused."""
    if not isinstance(value, str) or len(value) > _CHARS_MAX:
        return None
    found = _FORM.fullmatch(value)
    if found is None or (found[1] == "00" and found[5] is not None):
        return None
    return TraceContext(value, found[2], found[3], found[4])


def of_headers(headers: Mapping[bytes, bytes]) -> TraceContext | None:
    """The trace that a request belongs to; None for most, and if its header is not valid."""
    value = headers.get(b"traceparent")
    return None if value is None else parse(value.decode("latin-1"))


def of_meta(meta: Mapping[str, Any] | None) -> str | None:
    """The traceparent that the meta of a record or job carries, None if it has no valid one."""
    value = None if meta is None else meta.get(TRACEPARENT)
    found = parse(value)
    return None if found is None else found.text


def current() -> str | None:
    """The traceparent of the code that runs: of its OpenTelemetry span, or what `following` was given."""
    api = _api()
    if api is not None:
        context = api.get_current_span().get_span_context()
        if context.is_valid:
            return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return _current.get()


def quick_current() -> Callable[[], str | None]:
    """What `current` does, without OpenTelemetry if the program has not loaded it until now."""
    return _current.get if _api() is None else current


@contextmanager
def following(traceparent: str | None) -> Iterator[None]:
    """Let what is sent in this block belong to a trace; None leaves the context as it is."""
    found = parse(traceparent)
    if found is None:
        yield
        return
    before = _current.set(found.text)
    try:
        yield
    finally:
        _current.reset(before)


# --- OpenTelemetry ---------------------------------------------------------------------------------------


def _api() -> Any:
    """The tracing API if the program has loaded it; a program without it has no spans."""
    return sys.modules.get(API)


def _tracer() -> Any:
    """What makes spans, None if the program exports none."""
    api = _api()
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
        return None
    return provider.get_tracer("everlog")


def _parent(api: Any, traceparent: str | None) -> Any:
    """The OpenTelemetry context of a remote parent, None for the context of the code that runs."""
    found = parse(traceparent)
    if found is None:
        return None
    flags = api.TraceFlags(int(found.flags, 16))
    remote = api.SpanContext(int(found.trace_id, 16), int(found.span_id, 16), True, flags)
    return api.set_span_in_context(api.NonRecordingSpan(remote))


@contextmanager
def span(
    name: str, kind: SpanKind, attributes: Mapping[str, str | int], parent: str | None = None
) -> Iterator[None]:
    """Export a span over this block, if spans are exported; `parent` is followed in any case."""
    tracer = _tracer()
    if tracer is None:
        with following(parent):
            yield
        return
    api = _api()
    with tracer.start_as_current_span(
        name, _parent(api, parent), api.SpanKind[kind.upper()], attributes=dict(attributes)
    ):
        yield


def record_span(
    name: str,
    attributes: Mapping[str, str | int],
    parent: str | None,
    start_ns: int,
    end_ns: int,
    failed: bool,
) -> None:
    """Export the span of a request that was answered, if spans are exported; times are wall time."""
    tracer = _tracer()
    if tracer is None:
        return
    api = _api()
    # Without a parent it begins a trace: the loop of a server has no context of its own.
    context = _parent(api, parent) or api.set_span_in_context(api.INVALID_SPAN)
    made = tracer.start_span(
        name, context, api.SpanKind.SERVER, attributes=dict(attributes), start_time=start_ns
    )
    if failed:
        made.set_status(api.StatusCode.ERROR)
    made.end(end_ns)


def is_exported() -> bool:
    """Whether the program exports spans."""
    return API in sys.modules and _tracer() is not None


def export_as_told(environment: Mapping[str, str], service: str) -> None:
    """Export spans if `OTEL_TRACES_EXPORTER` says so: to `otlp` or the `console`; the SDK reads the rest."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter in ("", "none"):
        return
    if exporter not in ("otlp", "console"):
        raise InvalidConfig(f"OTEL_TRACES_EXPORTER is {exporter!r}; it must be otlp, console or none")
    try:
        trace = import_module(API)
        sdk = import_module("opentelemetry.sdk.trace")
        export = import_module("opentelemetry.sdk.trace.export")
        resources = import_module("opentelemetry.sdk.resources")
        made = export.ConsoleSpanExporter()
        if exporter == "otlp":
            otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
            made = otlp.OTLPSpanExporter()
    except ImportError as error:
        raise InvalidConfig(
            f"OTEL_TRACES_EXPORTER is {exporter}, but {error.name} is not installed; "
            "pip install 'everlog[otel]', or unset it"
        ) from None
    named = {} if "OTEL_SERVICE_NAME" in environment else {"service.name": service}
    provider = sdk.TracerProvider(resource=resources.Resource.create(named))
    provider.add_span_processor(export.BatchSpanProcessor(made))
    trace.set_tracer_provider(provider)
