"""`python -m everlog.server.schema [DIRECTORY]`: write the documents of the HTTP API.

The directory is `docs/reference` unless another one is named.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from everlog.server.schema.documents import write_documents


def main(arguments: list[str], write: Callable[[Path], Iterable[Path]] = write_documents) -> int:
    """Write what has changed and say so."""
    directory = Path(arguments[0] if arguments else "docs/reference")
    if not directory.is_dir():
        print(
            f"there is no directory {directory}; name one, or run this in the repository root",
            file=sys.stderr,
        )
        return 2
    for path in write(directory):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
