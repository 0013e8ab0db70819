"""The page of the proof shows the stored figures, and these are what the runs counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import proof

ROOT = Path(__file__).resolve().parents[2]
RUN = {"seconds": 200, "date": "2026-01-02", "commit": "abc1234", "machine": "2 cores"}
DOCUMENTS: dict[str, dict[str, Any]] = {
    "simulation": {
        "seeds": 1000,
        "failed": [],
        "operations_per_seed": 120,
        "counts": {"kill": 7, "power loss": 3},
    },
    "coverage": {"seeds": 10, "coverage": {"append.py": [3, 4], "storage/wal.py": [9, 10]}},
    "kills": {"tests": 2, "counts": {"tests/crash/a.py": {"kills": 1200}}, "trials": {}},
    "damage": {"tests": 1, "counts": {}, "trials": {"tests/queue/a.py": {"segment: surfaced": 2000}}},
    "mutants": {
        "mutants": [
            {
                "name": "m",
                "breaks": "A | promise.",
                "caught_by": "simulation",
                "detail": "seed 7, operation 3: lost",
            },
            {
                "name": "n",
                "breaks": "Another.",
                "caught_by": "jobs",
                "detail": "FAILED tests/topics/a.py::test_x - lost",
            },
        ]
    },
    "sanitize": {
        "tests": 5,
        "counts": {"tests/fuzz/a.py": {"fuzz_cases": 90_000, "fuzzed_requests": 400}},
        "trials": {},
    },
}

COUNTED_TEST = """
import subprocess, sys

def test_two_processes_are_killed(record_property):
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        child.kill()
        child.communicate()
    record_property("trials", '{"segment: surfaced": 3}')
"""


def test_the_page_shows_the_stored_figures() -> None:
    page = proof.PAGE.read_text(encoding="utf-8")
    assert page == proof.with_figures(page, proof.figures(proof.load())), "run `make proof-page`"


def test_every_part_has_its_line_and_its_details() -> None:
    block = proof.figures({name: document | RUN for name, document in DOCUMENTS.items()})
    for text in (
        "| Simulation | 1,000 seeds, 0 failed; 10 power losses and kills | 3 min | 2026-01-02, abc1234, ",
        "85.7 % of 14 lines, by 10 seeds",
        "| storage | 10 | 90.0 % |",
        "1,200 processes killed",
        "2,000 trials, none silent",
        "2 faults planted, 0 not noticed",
        "| m | A \\| promise. | simulation | seed 7 |",
        "| n | Another. | jobs | a.py::test_x |",
        "90,000 damaged inputs, 400 damaged requests",
    ):
        assert text in block
    assert "Not run here" not in block


def test_parts_that_were_not_run_are_named() -> None:
    assert "`make proof PART=kills`" in proof.figures({"simulation": DOCUMENTS["simulation"] | RUN})


def test_kills_and_trials_of_a_run_are_in_its_figures(tmp_path: Path) -> None:
    (tmp_path / "test_counted.py").write_text(COUNTED_TEST)
    report = tmp_path / "report.xml"
    options = ["-p", "tests.support.counted", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_counted.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "kills 2" in done.stdout
    found = proof.of_report(report)
    assert (found["tests"], [*found["counts"].values()]) == (1, [{"kills": 2}])
    assert [*found["trials"].values()] == [{"segment: surfaced": 3}]


def test_figures_are_stored_under_their_names(tmp_path: Path) -> None:
    stored = tmp_path / "stored"
    stored.mkdir()
    (tmp_path / "kills.json").write_text("{}")
    (tmp_path / "other.json").write_text("{}")
    assert proof.store(tmp_path, stored) == ["kills"]
    assert [path.name for path in stored.iterdir()] == ["kills.json"]


@pytest.mark.parametrize("name", proof.PARTS)
def test_a_part_names_files_that_exist(name: str) -> None:
    assert [word for word in proof.PARTS[name].arguments if "/" in word and not (ROOT / word).exists()] == []
