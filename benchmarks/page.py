"""Write the page of numbers and the README's table from stored results.

Owns `benchmarks/results`, one file per benchmark, `docs/internals/benchmarks.md` and the block of the README
between its two markers. `python -m benchmarks.page [FOLDER]` first stores the files that `--json` wrote to
FOLDER, each named after its benchmark; without a folder it only writes the pages again. Measures nothing.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "internals" / "benchmarks.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- numbers:begin -->", "<!-- numbers:end -->"
README_ROWS_MAX = 8

Document = dict[str, Any]

BENCHMARKS = {
    "queue": "Queue",
    "server": "Server",
    "client": "Python clients and bridge",
    "engine": "Topics engine",
    "books": "Order books",
    "archive": "Archive",
    "spark": "Spark",
}
"""In the order of the page; the name is that of the module, the file and the make target."""

TITLES = {
    "redis": "Redis Streams",
    "nats": "NATS JetStream",
    "pyzmq": "pyzmq ipc",
    "pipe": "mp.Pipe",
}
"""Contenders whose title differs from their name."""

FACTS = (
    "cpu",
    "kernel",
    "python",
    "rounds",
    "pinned",
    "files",
    "queue files",
    "noise",
    "interrupted",
    "versions",
)
"""What the page says about the machine, in this order; results may hold more."""

README_ROWS = (
    ("queue", "append_ns", "append 64 bytes to a queue, checksum included"),
    ("queue", "spinning_p50_us", "from one process to another, p50"),
    ("queue", "stream_64b_per_s", "messages from one process to another, one by one"),
    ("server", "client_keys_per_s", "single records over HTTP, with API key and idempotency key"),
    ("server", "batch_keys_per_s", "batches of 100 over HTTP, with API key"),
    ("server", "few_p50_ms", "from a write to 100 watchers, p50"),
    ("server", "jobs_per_s", "jobs leased and acknowledged, 50 workers"),
    ("books", "L2 updates", "L2 book updates on one core"),
    ("spark", "scan5_per_s", "queue to a Spark DataFrame, two cores"),
)
"""Benchmark, number and label; the first README_ROWS_MAX of those that were measured are shown."""


def condensed(document: Mapping[str, Any]) -> Document:
    """The part of a benchmark's `--json` output that the pages show, with three digits a value."""
    machine = {fact: document["machine"][fact] for fact in FACTS if fact in document["machine"]}
    for fact in ("files", "queue files"):
        if fact in machine:
            # Where the files were is of no interest, and the path may name a person or a company.
            machine[fact] = re.sub(r"^.*\((\w+)\)$", r"\1", machine[fact])
    rows = [_condensed_row(row) for row in document["rows"]]
    return {"machine": machine, "rows": [row for row in rows if row["values"]]}


def _condensed_row(row: Mapping[str, Any]) -> Document:
    values = row.get("values")
    if values is None:
        values = {"lowest": row["min"], "median": row["median"], "highest": row["max"]}
    kept = {name: row[name] for name in ("section", "row", "number", "unit", "target", "verdict")}
    return kept | {"values": {name: float(f"{value:.3g}") for name, value in values.items()}}


def store(folder: Path, results: Path = RESULTS) -> list[str]:
    """Store the condensed form of each benchmark that has a file in `folder`; return their names."""
    stored = []
    for name in BENCHMARKS:
        source = folder / f"{name}.json"
        if source.exists():
            text = json.dumps(condensed(json.loads(source.read_text(encoding="utf-8"))), indent=1)
            (results / f"{name}.json").write_text(text + "\n", encoding="utf-8")
            stored.append(name)
    return stored


def load(results: Path = RESULTS) -> dict[str, Document]:
    """The stored results by the name of their benchmark, in the order of the page."""
    paths = {name: results / f"{name}.json" for name in BENCHMARKS}
    return {
        name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()
    }


# --- The page --------------------------------------------------------------------------------------------


def page(results: Mapping[str, Document]) -> str:
    """The whole page of numbers."""
    absent = [f"`make bench-{name}`" for name in BENCHMARKS if name not in results]
    parts = [
        "# Benchmarks",
        "<!-- Written by `make bench-page`; do not edit. -->",
        "Every figure of everlog's speed, with its machine and the command that measures it. Each benchmark\n"
        "runs everlog beside its peers in one run, in interleaved rounds. Compare rows of one table only:\n"
        "numbers depend on the processor, the kernel and the load. `make bench-page` writes this page.",
        "Times are better when low, rates (`/s`) when high. A target that was not met is marked *missed*.",
    ]
    if absent:
        parts.append(f"Not measured here: {', '.join(absent)}.")
    for name, document in results.items():
        parts += _benchmark(name, document)
    return "\n\n".join(parts) + "\n"


def _benchmark(name: str, document: Document) -> Iterable[str]:
    yield f"## {BENCHMARKS[name]}"
    yield f"```sh\nmake bench-{name}\n```"
    machine = document["machine"]
    yield "\n".join(f"- {fact}: {machine[fact]}" for fact in FACTS if fact in machine)
    for section, rows in groupby(document["rows"], key=lambda row: row["section"]):
        yield f"### {section}" if section else "### All rows"
        yield _table(list(rows))


def _table(rows: Sequence[Document]) -> str:
    names = sorted({name for row in rows for name in row["values"]}, key=_column)
    has_targets = any(row["target"] for row in rows)
    header = [
        "What",
        "Unit",
        *(TITLES.get(name, name) for name in names),
        *(["Target"] if has_targets else []),
    ]
    lines = [_line(header), _line(["---"] * 2 + ["---:"] * (len(header) - 2))]
    for row in rows:
        cells = [row["row"].strip(), row["unit"]]
        cells += [shown(row["values"][name]) if name in row["values"] else "" for name in names]
        lines.append(_line([*cells, *([_target(row)] if has_targets else [])]))
    return "\n".join(lines)


def _column(name: str) -> tuple[int, str]:
    order = ("lowest", "median", "highest", "everlog")
    return (order.index(name), "") if name in order else (len(order), name)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _target(row: Document) -> str:
    target = (row["target"] or "").replace("<=", "≤").replace(">=", "≥")
    return f"{target}, *missed*" if row["verdict"] == "MISSED" else target


def shown(value: float) -> str:
    """Three digits, with commas: 0.27, 8.6, 1,450."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# --- The README ------------------------------------------------------------------------------------------


def readme_table(results: Mapping[str, Document]) -> str:
    """At most eight rows: everlog, and the peers that were measured beside it."""
    found = [
        (label, row)
        for name, number, label in README_ROWS
        if name in results and (row := _row_of(results[name], number)) is not None
    ]
    lines = [_line(["What", "everlog", "peers in the same run"]), _line(["---"] * 3)]
    lines += [_readme_line(label, row) for label, row in found[:README_ROWS_MAX]]
    cpus = sorted({document["machine"]["cpu"] for document in results.values()})
    return "\n".join([*lines, "", f"Measured on {'; '.join(cpus)}."])


def _row_of(document: Document, number: str) -> Document | None:
    # The ratios to peers share the number of the row that they are made of.
    rows = (row for row in document["rows"] if row["number"] == number and row["unit"] != "x")
    return next(rows, None)


def _readme_line(label: str, row: Document) -> str:
    values = row["values"]
    own = values.get("everlog", values.get("median"))
    peers = [
        f"{TITLES.get(name, name)} {shown(value)}"
        for name, value in values.items()
        if name not in ("everlog", "lowest", "median", "highest")
    ]
    return _line([label, f"{shown(own)} {row['unit']}", ", ".join(peers)])


def with_numbers(readme: str, table: str) -> str:
    """The README with this table between its markers."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Store new results, if a folder is named, and write both pages."""
    if arguments:
        stored = store(Path(arguments[0]))
        print(f"stored: {', '.join(stored) or 'nothing; no file there has the name of a benchmark'}")
    results = load()
    PAGE.write_text(page(results), encoding="utf-8")
    README.write_text(
        with_numbers(README.read_text(encoding="utf-8"), readme_table(results)), encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
