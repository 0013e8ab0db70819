"""`python -m everlog.server.schema [DIRECTORY]`: write the documents of the HTTP API.

The directory is `docs/reference` unless another one is named.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from everlog.server.schema.documents import documents, write_changed


def main(arguments: list[str], texts: Callable[[], dict[str, str]] = documents) -> int:
    """Write the files that have changed and print their names."""
    directory = Path(arguments[0] if arguments else "docs/reference")
    if not directory.is_dir():
        print(
            f"{directory} is not a directory; name one, or run this in the repository root", file=sys.stderr
        )
        return 2
    for path in write_changed(directory, texts()):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
