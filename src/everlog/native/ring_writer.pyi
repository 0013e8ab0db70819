"""Types of the native writer module."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from everlog.native.guard import OneThread
from everlog.native.mapping import Mapping

class RingWriter(OneThread):
    current: Any
    partial: bool
    def append(self, type_id: int, payload: Buffer, timestamp_ns: int | None = None) -> int: ...
    def append_in_place(
        self,
        type_id: int,
        length: int,
        builder: Callable[[memoryview], object],
        timestamp_ns: int | None = None,
    ) -> int: ...
    def append_many(
        self, type_id: int, payloads: Iterable[Buffer], timestamp_ns: int | None = None
    ) -> int: ...
    def append_array(
        self, type_id: int, array: NDArray[Any], timestamp_ns: int | NDArray[np.uint64] | None = None
    ) -> int: ...
    def append_packed(
        self,
        type_id: int | NDArray[np.uint16],
        payloads: NDArray[np.uint8],
        ends: NDArray[np.uint64],
        timestamps_ns: NDArray[np.uint64],
        flags: NDArray[np.uint16] | None = None,
        starts: NDArray[np.uint64] | None = None,
    ) -> int: ...
    @property
    def next_seq(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def bytes_written(self) -> int: ...
    def _attach(
        self,
        control: Mapping,
        segment: Mapping,
        current: object,
        offset: int,
        next_seq: int,
        index_stride: int,
        wall_ns: Callable[[], int] | None,
        anchored: bool,
    ) -> None: ...
    def _roll_to(self, segment: Mapping, current: object, segment_id: int) -> None: ...
    def _detach(self) -> None: ...
    def _set_limit(self, limit: int) -> None: ...
    def _set_due(self, bytes_written: int, seq: int) -> None: ...
    def _index_state(self) -> tuple[bytes, int, int, int, int, int, Any, bool] | None: ...
