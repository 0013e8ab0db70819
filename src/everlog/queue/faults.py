"""Turns `OSError` into `Io` at the borders of the queue, with what was being done.

Owns the wording; inside the queue plain `OSError` travels.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from everlog.errors import Io

_ADVICE = {
    errno.ENOSPC: "the disk is full; free space or lower max_bytes, then retry",
    errno.EDQUOT: "the disk quota is used up; free space, then retry",
    errno.EROFS: "the file system is read-only; a writer and a named reader need to write",
    errno.EACCES: "this user may not; check owner and mode of the queue directory",
    errno.ELOOP: "it is a symbolic link, which is not followed; remove it",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
}


@contextmanager
def io_errors(action: str) -> Iterator[None]:
    """Raise `Io` for any `OSError` of the body: "cannot <action>: <reason>"."""
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        reason = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename else ""
        advice = f"; {_ADVICE[number]}" if number in _ADVICE else ""
        raise Io(f"cannot {action}: {reason}{where}{advice}", error.errno) from error
