"""Build the native code with ASan and UBSan and run tests and fuzzing with it: `make sanitize`.

Owns the folder build/sanitize: a copy of the package with sanitized extensions, the reports, and the case
that each fuzzer is at. The normal build stays as it is. Every report fails the run, also that of a process
whose end no test looks at.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "build" / "sanitize"
PACKAGE: Final = FOLDER / "lib"
REPORTS: Final = FOLDER / "reports"
CASES: Final = FOLDER / "cases"
TESTS: Final = ("tests/native", "tests/queue", "tests/fuzz", "tests/server/test_fuzzed_requests.py")
TEST_TIMEOUT_S: Final = 1200
REQUEST_CASES: Final = 400
# Preloaded, because Python itself is not built with it; libstdc++ has to be there before ASan looks for it.
LIBRARIES: Final = ("libasan.so", "libstdc++.so")
# Leaks are left to tests/native/test_leaks.py. Tests ask for more memory than there is.
ASAN_OPTIONS: Final = "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:log_path={}/asan"
UBSAN_OPTIONS: Final = "print_stacktrace=1:abort_on_error=1"
SIGNS: Final = (b"ERROR: AddressSanitizer", b"runtime error:")


def build() -> None:
    """Bring build/sanitize up to date."""
    for stale in PACKAGE.rglob("*.py"):
        stale.unlink()  # a module that was removed must not be found there
    folders = ["--build-base", str(FOLDER), "--build-lib", str(PACKAGE)]
    command = [sys.executable, "setup.py", "-q", "build", *folders]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "EVERLOG_SANITIZE": "1"}, check=True)
    for folder in (REPORTS, CASES):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()


def environment(seed: int, seconds: float) -> dict[str, str]:
    """What makes a Python process, and those it starts, use the sanitized build."""
    found = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, check=True, text=True).stdout
        for name in LIBRARIES
    ]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(path.strip() for path in found),
        "PYTHONPATH": f"{ROOT / 'tools/sanitized'}:{PACKAGE}",
        # Python's own allocator hides from ASan where an object ends.
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": ASAN_OPTIONS.format(REPORTS),
        "UBSAN_OPTIONS": UBSAN_OPTIONS,
        "UBSAN_REPORTS": str(REPORTS / "ubsan"),
        "FUZZ_SEED": str(seed),
        "FUZZ_SECONDS": str(seconds),
        "FUZZ_LOG": str(CASES),
        "FUZZ_CASES": str(max(REQUEST_CASES, int(seconds * 20))),
        "TEST_SEED": str(seed),
    }


def problems() -> list[str]:
    """The reports of the sanitizers; a mere warning is none."""
    contents = [path.read_bytes() for path in sorted(REPORTS.iterdir())]
    return [
        content.decode(errors="replace") for content in contents if any(sign in content for sign in SIGNS)
    ]


def main() -> int:
    """Build, run, and print what was found; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tools.sanitize", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="time for each fuzzer")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="of the fuzzers; printed")
    parser.add_argument("tests", nargs="*", default=TESTS)
    chosen = parser.parse_args()
    build()
    print(f"FUZZ_SEED={chosen.seed}", flush=True)
    command = [sys.executable, "-m", "pytest", "--numprocesses", "2", "--dist", "loadfile", "-q"]
    command += ["--max-worker-restart", "0", f"--timeout={TEST_TIMEOUT_S}", *chosen.tests]
    code = subprocess.run(
        command, cwd=ROOT, env=environment(chosen.seed, chosen.seconds), check=False
    ).returncode
    found = problems()
    for report in found:
        print(report)
    if found or code != 0:
        print(*(path.read_text().strip() for path in sorted(CASES.iterdir())), sep="\n")
    print(f"{len(found)} reports of the sanitizers, pytest exit code {code}")
    return 1 if found else code


if __name__ == "__main__":
    sys.exit(main())
