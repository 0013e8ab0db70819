"""`python -m everlog.cli.reference [DIRECTORY]`: write the pages on commands, settings and metrics.

The directory is `docs/reference` unless another one is named.
"""

from __future__ import annotations

import sys
from pathlib import Path

from everlog.cli.reference.pages import write_pages


def main(arguments: list[str]) -> int:
    """Write what has changed and say so."""
    directory = Path(arguments[0] if arguments else "docs/reference")
    if not directory.is_dir():
        print(
            f"there is no directory {directory}; name one, or run this in the repository root",
            file=sys.stderr,
        )
        return 2
    for path in write_pages(directory):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
