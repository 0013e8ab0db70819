"""Types of the native request and of the short way to one."""

from typing import Any, Final

SPECIAL_HEADERS: Final[frozenset[bytes]]

class Request:
    method: str
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    peer: str
    body: bytes
    context: Any
    keep_alive: bool
    is_http_1_0: bool
    offers_upgrade: bool
    is_plain: bool
    def __init__(
        self, method: str, path: bytes, query: bytes, headers: dict[bytes, bytes], peer: str
    ) -> None: ...
    def header(self, name: bytes) -> bytes | None: ...

def read_plain(
    data: bytes,
    peer: str,
    max_target_bytes: int,
    max_header_bytes: int,
    max_headers: int,
    max_body_bytes: int,
) -> Request | None: ...
