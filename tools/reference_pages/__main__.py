"""`python -m tools.reference_pages [DIRECTORY]`: write the pages that are made from the code.

The directory is `docs/reference` unless another one is named.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.reference_pages.documents import DOCUMENTS_OF_SERVER, documents, write_changed

SERVED = Path("src/everlog/server/documents")


def main(arguments: list[str]) -> int:
    """Write the files that have changed and print their names."""
    directory = Path(arguments[0] if arguments else "docs/reference")
    if not directory.is_dir():
        print(
            f"{directory} is not a directory; name one, or run this in the repository root", file=sys.stderr
        )
        return 2
    texts = documents()
    changed = write_changed(directory, texts)
    if not arguments:
        changed += write_changed(SERVED, {name: texts[name] for name in DOCUMENTS_OF_SERVER})
    for path in changed:
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
