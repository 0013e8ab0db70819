"""Run the long checks one after the other, and write their figures into docs/internals/proof.md.

Owns `build/proof` (one JSON file for each part that has passed), `tests/proof` (the figures that the page
shows) and the block between the two markers of the page. `run` leaves out the parts that have a file already,
so an interrupted run goes on where it was. `page FOLDER` stores the files of a folder and writes the page.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "build" / "proof"
RESULTS: Final = ROOT / "tests" / "proof"
PAGE: Final = ROOT / "docs" / "internals" / "proof.md"
BEGIN: Final = "<!-- figures:begin -->"
END: Final = "<!-- figures:end -->"
LONGEST_TEST_S: Final = 14_400

Document = dict[str, Any]


class Part(NamedTuple):
    """One long check. What its pytest counts is in a report; other commands write their JSON themselves."""

    title: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = {}
    has_report: bool = True


def _tests(*arguments: str) -> tuple[str, ...]:
    return ("-m", "pytest", "-q", "--numprocesses", "2", "--dist", "worksteal", *arguments)


PARTS: Final = {
    "simulation": Part(
        "Simulation",
        ("-m", "tests.simulation", "--processes", "2", "--keep-going", "--seeds", "0..9999"),
        has_report=False,
    ),
    "coverage": Part(
        "Coverage of the topics engine by simulation",
        ("-m", "tests.simulation.coverage_by_seeds", "--seeds", "500"),
        has_report=False,
    ),
    "kills": Part(
        "Real kills",
        _tests("-m", "crash or soak", "tests/crash", "tests/spark", "tests/soak/test_queue_soak.py"),
        {"SOAK_SECONDS": "120"},
    ),
    "damage": Part(
        "Damaged files",
        _tests(
            "-k",
            "damage_to_any_file",
            "tests/queue/test_damage.py",
            "tests/topics/storage/test_random_damage.py",
        ),
        {"QUEUE_DAMAGE_TRIALS": "2000", "EVERLOG_DAMAGE_TRIALS": "2000"},
    ),
    "mutants": Part("Planted faults", ("-m", "tests.mutants"), has_report=False),
    "sanitize": Part("Sanitizers and fuzzing", ("-m", "tools.sanitize", "--seconds", "60")),
}
"""In the order of the page; the name is that of the file and of `make proof PART=`."""


# --- Running ---------------------------------------------------------------------------------------------


def run(name: str, folder: Path = FOLDER) -> bool:
    """Run one part and leave its file if it has passed."""
    part, target = PARTS[name], folder / f"{name}.json"
    report = folder / f"{name}.xml"
    environment = {**os.environ, **part.environment}
    arguments = list(part.arguments)
    if part.has_report:
        options = f"-p tests.support.counted --junitxml={report} --timeout={LONGEST_TEST_S}"
        environment["PYTEST_ADDOPTS"] = options
    else:
        arguments += ["--json", str(target)]
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    print(f"{part.title}: python {' '.join(arguments)}", flush=True)
    if subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, check=False).returncode:
        target.unlink(missing_ok=True)
        return False
    document = of_report(report) if part.has_report else json.loads(target.read_text(encoding="utf-8"))
    kernel = ".".join(platform.release().split(".")[:2])
    document |= {
        "seconds": round(time.monotonic() - started),
        "commit": _output("git", "rev-parse", "--short", "HEAD"),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{os.cpu_count()} cores, Linux {kernel}, Python {platform.python_version()}",
    }
    target.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return True


def of_report(report: Path) -> Document:
    """What the report of a pytest run says: tests, and the sums of what they counted, by test file."""
    files: dict[str, Counter[str]] = {}
    trials: dict[str, dict[str, int]] = {}
    tests = 0
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("skipped") is not None:
            continue
        tests += 1
        name = case.attrib["classname"].replace(".", "/") + ".py"
        for entry in case.iter("property"):
            if entry.attrib["name"] == "trials":
                trials[name] = json.loads(entry.attrib["value"])
            elif entry.attrib["value"].isdigit():
                files.setdefault(name, Counter())[entry.attrib["name"]] += int(entry.attrib["value"])
    return {"tests": tests, "counts": files, "trials": trials}


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()


# --- The page --------------------------------------------------------------------------------------------


def store(folder: Path, results: Path = RESULTS) -> list[str]:
    """Store the files of the parts that were run; return their names."""
    results.mkdir(parents=True, exist_ok=True)
    found = [name for name in PARTS if (folder / f"{name}.json").exists()]
    for name in found:
        text = (folder / f"{name}.json").read_text(encoding="utf-8")
        (results / f"{name}.json").write_text(text, encoding="utf-8")
    return found


def load(results: Path = RESULTS) -> dict[str, Document]:
    """The stored figures by part, in the order of the page."""
    paths = {name: results / f"{name}.json" for name in PARTS}
    return {
        name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()
    }


def figures(documents: Mapping[str, Document]) -> str:
    """The generated block of the page."""
    absent = [f"`make proof PART={name}`" for name in PARTS if name not in documents]
    rows = [
        [PARTS[name].title, _headline(name, documents[name]), *_run_of(documents[name])] for name in documents
    ]
    parts = [_table(["Check", "Result", "Took", "Run"], rows)]
    if absent:
        parts.append(f"Not run here: {', '.join(absent)}.")
    for name, document in documents.items():
        parts += [f"### {PARTS[name].title}", f"```sh\nmake proof PART={name}\n```", _details(name, document)]
    return "\n\n".join(parts)


def _run_of(document: Document) -> list[str]:
    return [
        _duration(document["seconds"]),
        f"{document['date']}, {document['commit']}, {document['machine']}",
    ]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _headline(name: str, document: Document) -> str:
    if name == "simulation":
        lives = sum(document["counts"].get(kind, 0) for kind in ("power loss", "kill", "kill after failure"))
        return (
            f"{document['seeds']:,} seeds, {len(document['failed'])} failed; {lives:,} power losses and kills"
        )
    if name == "coverage":
        reached, total = _sum(document["coverage"].values())
        return f"{100 * reached / total:.1f} % of {total:,} lines, by {document['seeds']:,} seeds"
    if name == "mutants":
        survived = [each for each in document["mutants"] if each["caught_by"] is None]
        return f"{len(document['mutants'])} faults planted, {len(survived)} not noticed"
    if name == "damage":
        trials = sum(sum(outcomes.values()) for outcomes in document["trials"].values())
        return f"{trials:,} trials, none silent, no seq given out again"
    sums = sum((Counter(counts) for counts in document["counts"].values()), Counter[str]())
    if name == "kills":
        return f"{sums['kills']:,} processes killed, nothing acknowledged lost"
    return (
        f"{document['tests']:,} tests, {sums['fuzz_cases']:,} damaged inputs, {sums['fuzzed_requests']:,} "
        f"damaged requests: no report of a sanitizer, no 5xx"
    )


def _details(name: str, document: Document) -> str:
    if name == "simulation":
        done = document["counts"].items()
        return (
            f"{document['operations_per_seed']} operations a seed: "
            + ", ".join(f"{k} {v:,}" for k, v in done)
            + "."
        )
    if name == "coverage":
        groups: dict[str, list[Sequence[int]]] = {}
        for path, share in document["coverage"].items():
            groups.setdefault(path.rpartition("/")[0] or "engine", []).append(share)
        rows = [[group, *_share(_sum(shares))] for group, shares in sorted(groups.items())]
        return _table(["Part of `everlog.topics`", "Lines", "Reached"], rows)
    if name == "mutants":
        columns = ("name", "breaks", "caught_by", "detail")
        rows = [[_shortened(each, column) for column in columns] for each in document["mutants"]]
        return _table(["Planted fault", "Promise it breaks", "Noticed by", "Which"], rows)
    if name == "damage":
        rows = [
            [path, kind, f"{count:,}"]
            for path, trials in document["trials"].items()
            for kind, count in trials.items()
        ]
        return _table(["Test", "File and outcome", "Trials"], rows)
    rows = [
        [path, ", ".join(f"{k} {v:,}" for k, v in counts.items())]
        for path, counts in document["counts"].items()
    ]
    return _table(["Test", "Counted"], rows)


def _sum(shares: Iterable[Sequence[int]]) -> tuple[int, int]:
    pairs = list(shares)
    return sum(hit for hit, _ in pairs), sum(total for _, total in pairs)


def _share(share: tuple[int, int]) -> list[str]:
    reached, total = share
    return [f"{total:,}", f"{100 * reached / total:.1f} %"]


def _shortened(mutant: Document, column: str) -> str:
    """A cell of the table of mutants; of what a check said, the seed or the test."""
    text = str(mutant[column] or "")
    if column != "detail":
        return text
    if text.startswith("seed "):
        return text.partition(",")[0]
    words = text.split()
    return words[1].rpartition("/")[2] if text.startswith(("FAILED", "ERROR")) and len(words) > 1 else text


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def with_figures(page: str, block: str) -> str:
    """The page with this block between its markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{block}\n\n{END}{after}"


def main() -> int:
    """Run parts, or write the page."""
    parser = argparse.ArgumentParser(prog="tools.proof", description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("run", "page"))
    parser.add_argument("names", nargs="*", help="run: these parts, again; page: a folder of new figures")
    chosen = parser.parse_args()
    if chosen.action == "page":
        for folder in chosen.names:
            print(f"stored: {', '.join(store(Path(folder))) or 'nothing'}")
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_figures(page, figures(load())), encoding="utf-8")
        return 0
    names = chosen.names or [name for name in PARTS if not (FOLDER / f"{name}.json").exists()]
    failed = [name for name in names if not run(name)]
    print(f"passed: {len(names) - len(failed)}, failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
