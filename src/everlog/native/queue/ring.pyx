# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The memory-mapped queue's kernels: mappings, one-thread objects, the hot halves of reader and writer.

Owns mapped memory and positions in it. Opens no file and decides nothing: `everlog.queue` does. One module in
parts, so that the C core is linked once.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_SIMPLE, PyBUF_STRIDES, PyBuffer_FillInfo, PyBuffer_Release,
    PyObject_CheckBuffer, PyObject_GetBuffer,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from cpython.long cimport PyLong_CheckExact
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.number cimport PyNumber_Index
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from array import array
from contextlib import suppress

from numpy import asarray, ndarray

from everlog.errors import (
    Closed, ConcurrentUse, Corrupt, InvalidTimestamp, InvalidTypeId, PayloadTooLarge, Unsupported,
    UnsupportedVersion,
)

include "core.pxi"

ring_init()

include "one_thread.pxi"
include "mapping.pxi"
include "reader.pxi"
include "writer.pxi"
