"""Merged channel files of SZSE: order-by-order events as one CSV file per channel.

Owns the columns of these files, which the importer of `everlog.market.venues.szse` reads as well: what is
imported from them are the same events. Knows no queue.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import IO, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from everlog.market.decimals import render_scaled
from everlog.market.protocol import L3EventType
from everlog.market.venues.szse import NS_PER_MS, PRICE_SCALE, UTC_OFFSET_MS
from everlog.queue.faults import io_errors

COLUMNS: Final = (
    "ChannelNo",
    "ApplSeqNum",
    "Event",
    "Symbol",
    "OrderID",
    "BidOrderID",
    "OfferOrderID",
    "Side",
    "Price",
    "Qty",
    "Amt",
    "OrdType",
    "ExecType",
    "TransactTime",
    "SendingTime",
    "Source",
)
_EVENTS: Final = {
    L3EventType.ORDER_ADD: ("ORDER", "order"),
    L3EventType.TRADE: ("TRADE", "tick"),
    L3EventType.ORDER_CANCEL: ("CANCEL", "tick"),
}
_TEMPORARY: Final = ".tmp"


class ChannelFiles:
    """Files `channel_<n>.csv` in a folder; they get their names when the block ends without an error."""

    def __init__(self, folder: str) -> None:
        """Make the folder if there is none; files of the same names are replaced."""
        self._folder = folder
        self._files: dict[int, IO[str]] = {}
        with io_errors(f"make {folder}"):
            os.makedirs(folder, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with io_errors(f"write the channel files in {self._folder}"):
            for file in self._files.values():
                file.close()
                if kind is None:
                    os.replace(file.name, file.name.removesuffix(_TEMPORARY))
                else:
                    os.unlink(file.name)

    def add(self, records: NDArray[np.void]) -> None:
        """Write events, each to the file of its channel, in their order."""
        channels = records["header"]["stream_id"]
        with io_errors(f"write the channel files in {self._folder}"):
            for channel in np.unique(channels).tolist():
                self._file(channel).writelines(_lines(records[channels == channel]))

    def _file(self, channel: int) -> IO[str]:
        if channel not in self._files:
            path = os.path.join(self._folder, f"channel_{channel}.csv{_TEMPORARY}")
            self._files[channel] = file = open(path, "w", encoding="ascii", newline="")  # noqa: SIM115
            file.write(",".join(COLUMNS) + "\n")
        return self._files[channel]


def _lines(records: NDArray[np.void]) -> list[str]:
    header, event = records["header"], records["event"]
    numbers = [header[name].tolist() for name in ("stream_id", "seq", "market_id")]
    ids = [event[name].tolist() for name in ("order_id", "bid_order_id", "ask_order_id")]
    amounts = [event[name].tolist() for name in ("price", "qty", "amt")]
    codes = [event[name].tolist() for name in ("event_type", "side", "ord_type", "exec_type")]
    times = [_local_times(header[name]) for name in ("exchange_ts_ns", "ingest_ts_ns")]
    columns: list[list[Any]] = [*numbers, *ids, *amounts, *codes, *times]
    return [_line(*row) for row in zip(*columns, strict=True)]


def _line(channel: int, seq: int, symbol: int, *rest: Any) -> str:
    order, bid, offer, price, qty, amt, kind, side, ord_type, exec_type, transact, sent = rest
    event, source = _EVENTS[kind]
    return (
        f"{channel},{seq},{event},{symbol:06d},{order},{bid},{offer},{side or ''},"
        f"{render_scaled(price, PRICE_SCALE)},{qty},{render_scaled(amt, PRICE_SCALE)},"
        f"{_code(ord_type)},{_code(exec_type)},{transact},{sent},{source}\n"
    )


def _code(value: int) -> str:
    """A code as the exchange writes it: a digit is its value, a letter its byte, 0 stands for none."""
    return "" if value == 0 else str(value) if value < 10 else chr(value)


def _local_times(stamps_ns: NDArray[np.uint64]) -> list[str]:
    """Return `YYYYMMDDhhmmssSSS` of UTC+8."""
    local_ms = stamps_ns // np.uint64(NS_PER_MS) + np.uint64(UTC_OFFSET_MS)
    texts = np.datetime_as_string(local_ms.astype("datetime64[ms]"), unit="ms").tolist()
    unwanted = str.maketrans("", "", "-T:.")
    return [text.translate(unwanted) for text in texts]
