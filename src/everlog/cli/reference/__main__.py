"""`python -m everlog.cli.reference [DIRECTORY]`: write the pages on commands, settings and metrics.

The directory is `docs/reference` unless another one is named.
"""

from __future__ import annotations

import sys

from everlog.cli.reference.pages import write_pages
from everlog.server.schema import __main__ as schema


def main(arguments: list[str]) -> int:
    """Write what has changed and say so."""
    return schema.main(arguments, write_pages)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
