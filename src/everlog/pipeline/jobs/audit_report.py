"""What an audit found, for others than the one who ran it: a page of HTML, and rows of the table `audits`.

Decides nothing: what is checked, and what is a fault, is in `everlog.pipeline.jobs.audit`.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from html import escape
from typing import Final

import msgspec
import pyarrow as pa

from everlog.pipeline.jobs.audit import AuditReport, StreamAudit
from everlog.pipeline.lake import Appended, LakeTable
from everlog.pipeline.lake_files import TableFiles
from everlog.pipeline.lake_places import LakePlace

AUDITS: Final = "audits"
COUNTS: Final = {
    "delivered": "there once",
    "gap": "in a gap that the table records",
    "deleted": "absent, and the source had no such record",
    "behind": "at the source, not archived yet",
    "unverified": "delivered by a commit without a digest",
    "duplicate": "there more than once",
    "overlapping": "delivered although a gap row says that they are lost",
    "missing": "absent, and not explained",
    "altered": "not as they were committed, or different from the source",
}
"""What the counts of a stream mean, those that are faults last."""
FAULTS: Final = frozenset({"duplicate", "overlapping", "missing", "altered"})
_MS_PER_S: Final = 1000
_TEXT, _LONG = pa.string(), pa.int64()
AUDIT_SCHEMA: Final = pa.schema(
    [
        pa.field("audited_at", pa.timestamp("us", "UTC")),
        pa.field("table", _TEXT),
        pa.field("version", _LONG),
        pa.field("compared_with", pa.list_(pa.field("element", _TEXT))),
        pa.field("stream", _TEXT),
        pa.field("instance", _TEXT),
        pa.field("is_sound", pa.bool_()),
        pa.field("first_seq", _LONG),
        pa.field("last_seq", _LONG),
        *(pa.field(name, _LONG) for name in COUNTS),
        pa.field("unreadable", _TEXT),
    ]
)
"""One row for each stream of an audit; of one that could not read a file, a row that names it."""

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --bad: #b3261e; --good: #15703d; }
:root { --page: #fff; --text: #1b2127; --faint: #5f6b77; }
@media (prefers-color-scheme: dark) {
  :root { --bad: #ff9a90; --good: #6fd39a; --page: #0e1216; --text: #e4e9ee; --faint: #8f9ba7; }
}
body { background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; overflow-wrap: anywhere; }
.verdict { border-left: .4rem solid var(--good); padding: .3rem .8rem; font-weight: 600; }
.verdict.bad { border-color: var(--bad); }
section { border-top: 1px solid var(--line); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .5rem 0; }
dd { margin: 0; overflow-wrap: anywhere; } dd.n { text-align: right; font-variant-numeric: tabular-nums; }
.counts { grid-template-columns: 1fr max-content; }
.counts small { display: block; color: var(--faint); } .bad, .fault { color: var(--bad); }
"""


def html_of(report: AuditReport) -> str:
    """Return a page that says what was checked, against what, when, and what was found."""
    verdict = "Every seq is accounted for" if report.is_sound else "NOT every seq is accounted for"
    facts = {
        "Table": f"{report.place}/{report.table}" if report.place else report.table,
        "Version": "none" if report.version is None else str(report.version),
        "Compared with": "; ".join(report.compared_with) or "its own commits",
        "Audited": _at(report).isoformat(sep=" ", timespec="seconds"),
        "Streams": f"{len(report.streams):,}",
    }
    streams = sorted(report.streams, key=lambda one: one.is_sound)
    unreadable = [f'<p class="fault">cannot be read: {escape(file)}</p>' for file in report.unreadable]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Audit of {escape(report.table)}</title><style>{_STYLE}</style></head><body><main>",
            f"<h1>Audit of {escape(report.table)}</h1>",
            f'<p class="verdict{"" if report.is_sound else " bad"}">{verdict}</p>',
            "<dl>",
            *(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts.items()),
            "</dl>",
            *unreadable,
            *map(_section, streams),
            "</main></body></html>\n",
        ]
    )


def _section(stream: StreamAudit) -> str:
    """Return the part of the page about one stream; counts of nothing are left out, except those of rows."""
    title = f"{stream.name} {stream.instance or ''}".strip()
    lines = [f"<section><h2>{escape(title)}</h2>", f"<p>seq {stream.first_seq:,} to {stream.last_seq:,}</p>"]
    lines.append('<dl class="counts">')
    for name, meaning in COUNTS.items():
        count = getattr(stream, name)
        if count or name == "delivered":
            mark = ' class="fault"' if name in FAULTS else ""
            lines.append(f"<dt{mark}>{name} <small>{meaning}</small></dt>")
            lines.append(f'<dd class="n">{count:,}</dd>')
    lines.append("</dl>")
    for name in ("missing", "overlapping", "altered"):
        if found := getattr(stream, f"{name}_ranges"):
            ranges = ", ".join(f"{first:,} to {last:,}" for first, last in found)
            lines.append(f'<p class="fault">{name}: {ranges}</p>')
    return "\n".join([*lines, "</section>"])


def record_audit(lake: str | LakePlace, report: AuditReport) -> Appended:
    """Append the findings to the table `audits` of the lake."""
    shared = {
        "audited_at": _at(report),
        "table": report.table,
        "version": report.version,
        "compared_with": report.compared_with,
    }
    rows = [
        {**shared, "stream": one.name, **msgspec.structs.asdict(one), "is_sound": one.is_sound}
        for one in report.streams
    ]
    rows += [{**shared, "is_sound": False, "unreadable": file} for file in report.unreadable]
    target = LakeTable(lake, AUDITS)
    files = TableFiles(target.place, ())
    batch = pa.RecordBatch.from_pylist(rows, schema=AUDIT_SCHEMA)
    written = [*files.write(batch), *files.finish()]
    return target.commit(written, AUDIT_SCHEMA, f"audit-{uuid.uuid4().hex}", 0)


def _at(report: AuditReport) -> datetime:
    return datetime.fromtimestamp(report.audited_ms / _MS_PER_S, UTC)
