"""The bounds of the HTTP layer, in one place: sizes, counts and times.

Owns the numbers only. What happens at a bound is decided in `http_reading` (what a request may be) and
`http_connection` (what a connection may hold, and for how long).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one client may use. Every time is in seconds, every size in bytes."""

    max_body_bytes: int = 64 * 1024 * 1024
    """A longer body is refused with 413: by its Content-Length, or while its chunks arrive."""
    max_bodies_bytes: int = 256 * 1024 * 1024
    """Bodies of all connections together, from their first byte to the answer; one more is refused with 429.
    Those of at most `uncounted_body_bytes` are not counted."""
    uncounted_body_bytes: int = 16 * 1024
    """So small a body is bounded by the number of connections; counting it would cost every request."""
    max_target_bytes: int = 16 * 1024
    """A longer request target is refused with 414."""
    max_header_bytes: int = 64 * 1024
    """Names and values of all headers, four more for each; trailers count too. Above: 431."""
    max_headers: int = 100
    """More header lines than this are refused with 431."""
    max_pipelined: int = 16
    """Requests of one connection that may be unanswered; the rest stays unread."""
    max_connections: int = 20_000
    """A connection beyond this is answered with 503 and closed."""
    write_buffer_bytes: int = 64 * 1024
    """Output that the kernel has not taken before a connection stops reading requests."""
    header_timeout_s: float = 60.0
    """From the connect to the first byte, and from the first byte of a request to the end of its headers."""
    body_stall_timeout_s: float = 30.0
    """Between two pieces of a body."""
    body_timeout_s: float = 600.0
    """For a whole body, so that a trickle cannot hold a connection without end."""
    idle_timeout_s: float = 75.0
    """Between the last response and the next request."""
    write_stall_timeout_s: float = 60.0
    """Without the client taking a single byte of what is waiting for it."""
    linger_stall_timeout_s: float = 5.0
    """After a refusal: without a further byte of the refused request."""
    linger_timeout_s: float = 30.0
    """After a refusal: for the client to stop sending and read the answer."""
    sweep_interval_s: float = 1.0
    """Between two looks at all timeouts; no timeout is more exact than this."""
