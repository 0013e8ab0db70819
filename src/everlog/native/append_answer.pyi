"""Types of the native text of the answer to an append."""

from typing import Final

SEQS_OMITTED: Final[int]
SEQS_LISTED: Final[int]
SEQS_NULL: Final[int]

def render_fields(
    topic: str,
    first_seq: int,
    last_seq: int,
    seqs: int,
    head_seq: int,
    created: bool,
    deduped: bool,
    waited_ns: int,
    synced_ns: int,
    more: bytes,
) -> bytes: ...
