"""Types of the native text of the answer to an append."""

def render_seqs(first_seq: int, last_seq: int) -> bytes: ...
def render_fields(
    topic: bytes,
    first_seq: int,
    last_seq: int,
    seqs: bytes,
    head_seq: int,
    count: int,
    created: bool,
    deduped: bool,
    waited_ns: int,
    synced_ns: int,
    more: bytes,
) -> bytes: ...
