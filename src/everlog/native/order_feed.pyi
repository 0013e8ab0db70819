"""Types of the native way of orders from a queue into a book."""

from everlog.native.book_output import BookOutput
from everlog.native.l3_book import L3Kernel
from everlog.native.mapping import Mapping
from everlog.native.ring_reader import RingReader

def take_orders(
    reader: RingReader,
    book: L3Kernel,
    into: BookOutput,
    type_id: int,
    market: int,
    channel: int,
    number: int,
    max_count: int,
    verify: bool,
) -> tuple[Mapping, int, int, int, int, int | None, int | None]: ...
