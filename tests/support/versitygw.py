"""versitygw, an S3 server over a directory; run as a module, this installs it with go or says how."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "v1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
_BUILT = Path(__file__).resolve().parents[2] / "build" / "tools" / "versitygw"
PROGRAM = Path(os.environ.get("VERSITYGW") or shutil.which("versitygw") or _BUILT)


def main() -> None:
    """Install the program below `build`, if there is none."""
    if PROGRAM.exists():
        print(f"using {PROGRAM}")
        return
    go = shutil.which("go")
    if go is None:
        sys.exit(
            "versitygw is not installed, and go, which builds it, is not either. Install go 1.24 or newer "
            f"and repeat this, or install versitygw {VERSION} and set VERSITYGW to its path"
        )
    print(f"building {MODULE} (some minutes)", flush=True)
    environment = {**os.environ, "GOBIN": str(_BUILT.parent)}
    if subprocess.run([go, "install", MODULE], env=environment, check=False).returncode != 0:
        sys.exit(f"go could not build {MODULE}; its messages are above")


if __name__ == "__main__":
    main()
