"""Bodies that are sent compressed, in both directions; only where the settings allow it.

Owns the content codings and the bound on what may come out of a compressed body. Knows no route.
"""

from __future__ import annotations

import gzip
import zlib
from typing import Final

from everlog.server.errors import ApiError, invalid
from everlog.server.http import Headers, Request

COMPRESSED_BYTES_MIN: Final = 1024
"""A shorter answer is not worth the work."""
# JSON gets about as small at this level as at higher ones, in a fraction of the time.
LEVEL: Final = 1
GZIP_WINDOW_BITS: Final = 31
GZIP_CODINGS: Final = (b"gzip", b"x-gzip")
VARY: Final = (b"Vary", b"Accept-Encoding")


def unpack_body(request: Request, is_allowed: bool, max_body_bytes: int) -> None:
    """Replace a compressed body by what is in it; raises the error for the client if it cannot be."""
    coding = request.headers[b"content-encoding"].strip().lower()
    if coding in (b"", b"identity") or not request.body:
        return
    if coding not in GZIP_CODINGS or not is_allowed:
        known = "gzip and identity are" if is_allowed else "only identity is (gzip is switched off)"
        message = f"Content-Encoding is {coding.decode('latin-1')}; {known} accepted here"
        raise ApiError(415, "unsupported_media_type", message)
    request.body = _unpacked(request.body, max_body_bytes)


def _unpacked(body: bytes, max_body_bytes: int) -> bytes:
    """What is in a gzip body. One member only: a row of thousands of empty ones would keep the loop busy."""
    unpacker = zlib.decompressobj(GZIP_WINDOW_BITS)
    try:
        # One byte more than there is room for, to see whether the body just fits.
        text = unpacker.decompress(body, max_body_bytes + 1)
    except zlib.error:
        raise invalid("the body is not gzip, which Content-Encoding says it is") from None
    if len(text) > max_body_bytes:
        raise ApiError(
            413,
            "payload_too_large",
            f"the body is longer than {max_body_bytes} bytes when unpacked; send less at a time",
        )
    if not unpacker.eof or unpacker.unused_data:
        raise invalid("the gzip body is cut off, or something follows it; send exactly one gzip member")
    return text


def packed(request: Request, body: bytes) -> tuple[bytes, Headers]:
    """An answer as this client may have it, and the headers that say so."""
    if not takes_gzip(request.header(b"accept-encoding")):
        return body, (VARY,)
    return gzip.compress(body, LEVEL, mtime=0), ((b"Content-Encoding", b"gzip"), VARY)


def takes_gzip(accept: bytes | None) -> bool:
    """Whether an `Accept-Encoding` header allows gzip; what is not named is not allowed."""
    if accept is None:
        return False
    weights: dict[bytes, bool] = {}
    for part in accept.lower().split(b","):
        coding, _, parameters = part.partition(b";")
        weights[coding.strip()] = not _is_zero(parameters)
    named = [weights[coding] for coding in GZIP_CODINGS if coding in weights]
    return any(named) if named else weights.get(b"*", False)


def _is_zero(parameters: bytes) -> bool:
    """Whether the weight of a coding says that it is not acceptable."""
    name, _, value = parameters.partition(b"=")
    try:
        return name.strip() == b"q" and float(value) == 0.0
    except ValueError:
        return False
