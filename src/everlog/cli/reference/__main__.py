"""`python -m everlog.cli.reference [DIRECTORY]`: write the pages on commands, settings and metrics.

The directory is `docs/reference` unless another one is named.
"""

from __future__ import annotations

import sys

from everlog.cli.reference import pages
from everlog.server.schema.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], pages))
