"""Where XXH3-64 lies in memory: the function of the xxhash wheel, for C code to call directly.

Owns the search and the self-test; hashes nothing itself and knows no frame. Python code that wants
a hash calls `xxhash`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from typing import Final

import xxhash

SYMBOL: Final = "XXH3_64bits"
SELF_TEST_LENGTH: Final = 300
"""Longer than 240 bytes, where the last of the algorithm's paths begins."""

HashFunction = Callable[[bytes, int], int]


def find_function() -> ctypes._FuncPointer | None:
    """Return the C function in the shared object that `xxhash` itself uses, None if it is not exported."""
    try:
        wheel = import_module("xxhash._xxhash")
        function = getattr(ctypes.CDLL(wheel.__file__), SYMBOL)
    except (ImportError, AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    function.restype = ctypes.c_uint64
    return function  # type: ignore[no-any-return]


def is_xxh3(function: HashFunction) -> bool:
    """Whether `function` gives what `xxhash` gives, for every length up to SELF_TEST_LENGTH."""
    text = bytes((place * 37 + place // 7) & 0xFF for place in range(SELF_TEST_LENGTH))
    return all(
        function(text, length) == xxhash.xxh3_64_intdigest(text[:length])
        for length in range(SELF_TEST_LENGTH + 1)
    )


def find_address(function: ctypes._FuncPointer | None) -> int:
    """Return the address of a C function that passes the self-test, otherwise 0."""
    if function is None or not is_xxh3(function):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


address: int = find_address(find_function())
"""0 if the function cannot be had; frames then call back into `xxhash`, which is slow but right."""
