"""The report as one HTML file that opens offline: verdict, chain, plots, tables.

Owns the page and its style. Nothing is loaded from anywhere; without scripts, in light and in dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from examples.demo import charts, series
from examples.demo.chain_picture import chain_svg
from examples.demo.charts import Axis, Mark, Plot, Series, duration_text, legend
from examples.demo.evidence import Evidence
from examples.demo.page_style import STYLE
from examples.demo.summary import (
    Summary,
    audit_rows,
    kill_texts,
    latency_rows,
    stage_rows,
)

HALF = 490
COLOURS = ("blue", "orange", "green", "violet")


def render_page(evidence: Evidence, summary: Summary) -> str:
    """Return the whole page."""
    sections = [
        _verdict(summary),
        _figure("The chain", _chain_text(summary), _scrolled("the chain", chain_svg(evidence)), "wide"),
        _audit(evidence),
        '<div class="pair">',
        _prices(evidence),
        _heat(evidence),
        _latencies(evidence),
        _throughput(evidence),
        "</div>",
        _kills(evidence),
        _latency_table(evidence),
        _stages(evidence, summary),
    ]
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>everlog demo: {escape(summary.verdict)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


# -- sections --------------------------------------------------------------------------------


def _verdict(summary: Summary) -> str:
    tone = "good" if summary.is_sound else "bad"
    tiles = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value in summary.tiles
    )
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in summary.problems)
    return (
        f'<header><h1>everlog demo</h1><p class="lead">{escape(summary.subtitle)}</p>'
        f'<p class="verdict {tone}">{escape(summary.verdict)}</p>'
        f"{f'<ul class=bad>{problems}</ul>' if problems else ''}"
        f'<div class="tiles">{tiles}</div></header>'
    )


def _figure(title: str, text: str, body: str, css: str = "") -> str:
    return f'<section class="card {css}"><h2>{escape(title)}</h2><p>{escape(text)}</p>{body}</section>'


def _scrolled(name: str, picture: str) -> str:
    """A picture that keeps a readable size on a phone, where it is scrolled, by the keyboard too."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">{picture}</div>'


def _chain_text(summary: Summary) -> str:
    return (
        "Every box is a process of its own, every arrow says how many messages took it in this run. "
        f"A bolt marks who was killed with SIGKILL and started again. {summary.setting}"
    )


def _audit(evidence: Evidence) -> str:
    rows = audit_rows(evidence.verdict)
    text = (
        "Each step of the chain is counted from the data itself: what was to arrive, what arrived, what came "
        "again after a kill and was recognised, and what is unexplained."
    )
    headings = ("part", "step", "expected", "arrived", "again", "unexplained", "checked")
    total = ("", "all", *(f"{sum(row.number(name) for row in rows):,}" for name in headings[2:6]), "")
    body = [(*row.cells,) for row in rows]
    marks = ["bad" if row.number("unexplained") else "" for row in rows]
    return _figure(
        "Audit", text, _table(headings, body, numbers=range(2, 6), marks=marks, foot=total), "wide"
    )


def _prices(evidence: Evidence) -> str:
    found = series.prices(evidence)
    seconds, mid, spread = found.seconds.tolist(), found.mid.tolist(), found.spread_bps.tolist()
    x = Axis.linear(0.0, max(seconds), "seconds since the opening")
    upper = Plot(x, _padded(mid, "mid price"), width=HALF, height=190)
    upper.line(Series("mid price", "blue", seconds, mid))
    lower = Plot(x, Axis.linear(0.0, max(spread) * 1.1, "spread, bps"), width=HALF, height=170)
    lower.line(Series("spread", "orange", seconds, spread))
    pictures = upper.svg("mid price over time") + lower.svg("spread over time")
    text = f"{found.symbol}, {len(seconds):,} rows: {found.source}. 1 bps is a hundredth of a percent."
    return _figure("Mid price and spread", text, pictures)


def _heat(evidence: Evidence) -> str:
    found = series.heat(evidence)
    edges, levels = found.seconds.tolist(), found.prices.tolist()
    x = Axis.linear(0.0, edges[-1], "seconds since the opening")
    plot = Plot(x, Axis.linear(levels[0], levels[-1], "price"), width=HALF, height=330)
    charts.heat_cells(plot, edges, levels, found.shades.tolist())
    plot.line(Series("mid price", "mid", found.mid_seconds.tolist(), found.mid.tolist()))
    shades = "".join(f'<i class="shade back-heat-{shade}"></i>' for shade in range(1, series.HEAT_SHADES + 1))
    scale = f'<p class="legend">resting size 0 {shades} {found.largest:.2f} and more; the line is the mid</p>'
    text = "How much rests at each price, bids below the mid and asks above it, rebuilt from the L2 events."
    return _figure("Depth of the book", text, plot.svg("depth heat map") + scale)


def _latencies(evidence: Evidence) -> str:
    said = {
        "queue": (
            "From the append of a trade to its receipt in a strategy",
            "waited for the killed strategy",
        ),
        "SSE": (
            "From the append to the queue, over bridge and server, to the watcher",
            "waited for the killed bridge",
        ),
    }
    parts = []
    for found in series.histograms(evidence):
        title, waited = said[found.name]
        edges = found.edges_us.tolist()
        highest = max(1.0, float(max(found.counts.max(initial=0), found.apart.max(initial=0))))
        x = Axis.logarithmic(edges[0], edges[-1], "latency, logarithmic", duration_text)
        plot = Plot(x, Axis.linear(0.0, highest * 1.15, "messages"), width=HALF, height=190)
        plot.bars(edges, found.counts.tolist(), "blue", "messages")
        plot.bars(edges, found.apart.tolist(), "orange", "messages that waited")
        if found.latency is not None:
            plot.marks(
                Mark(max(edges[0], min(edges[-1], value)), f"{name} {duration_text(value)}")
                for name, value in (("p50", found.latency.p50_us), ("p99", found.latency.p99_us))
            )
        parts.append(f"<h3>{escape(found.name)}: {escape(title.lower())}</h3>{plot.svg(title)}")
        parts.append(legend([("under way", "blue"), (f"{found.apart_count:,} {waited}", "orange")]))
    text = "Percentiles leave out what waited for a process that was dead."
    return _figure("Latency", text, "".join(parts))


def _throughput(evidence: Evidence) -> str:
    found = series.rates(evidence)
    start = evidence.market.started_ns
    seconds = found.seconds.tolist()
    marks = [Mark((kill.killed_ns - start) / 1e9, f"{kill.who} killed") for kill in evidence.outcome.kills]
    names = list(found.per_second)
    parts = []
    for chosen, shown in ((names[:2], marks[:1]), (names[2:], marks[1:])):
        colours = [COLOURS[names.index(name)] for name in chosen]
        highest = max(float(found.per_second[name].max(initial=1)) for name in chosen)
        x = Axis.linear(0.0, seconds[-1], "seconds since the opening")
        plot = Plot(x, Axis.linear(0.0, highest * 1.1, "messages a second"), width=HALF, height=210)
        plot.marks(shown)
        for name, colour in zip(chosen, colours, strict=True):
            plot.line(Series(name, colour, seconds, found.per_second[name].tolist()))
        parts.append(plot.svg("messages a second over time"))
        parts.append(legend(zip(chosen, colours, strict=True)))
    text = "When the bridge is back, what had piled up in the queue comes in one burst. Nothing is skipped."
    return _figure("Throughput", text, "".join(parts))


def _kills(evidence: Evidence) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in kill_texts(evidence))
    text = "Three processes were killed without warning, and what they had to do was done all the same."
    return _figure("Kills", text, f"<ul>{items}</ul>", "wide")


def _latency_table(evidence: Evidence) -> str:
    headings = (
        "link",
        "messages",
        "a second",
        "p50, µs",
        "p99, µs",
        "p99.9, µs",
        "lost",
        "duplicated",
        "again",
    )
    rows = latency_rows(evidence)
    text = "The order flow over queues, and server-sent events. From append to receipt, microseconds."
    return _figure("Links", text, _table(headings, rows, numbers=range(1, 9)), "wide")


def _stages(evidence: Evidence, summary: Summary) -> str:
    rows = stage_rows(evidence)
    body = _table(("stage", "seconds", "result"), rows, numbers=range(1, 2))
    return _figure("Stages", summary.machine, body, "wide")


# -- pieces ----------------------------------------------------------------------------------


def _padded(values: Sequence[float], label: str) -> Axis:
    low, high = min(values), max(values)
    room = max((high - low) * 0.08, 1e-9)
    return Axis.linear(low - room, high + room, label)


def _table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: range,
    marks: Sequence[str] = (),
    foot: Sequence[str] | None = None,
) -> str:
    heads = "".join(
        f'<th scope="col" role="columnheader"{" class=n" if place in numbers else ""}>{escape(heading)}</th>'
        for place, heading in enumerate(headings)
    )

    def cells(values: Sequence[str]) -> str:
        # On a phone a row is a list of names and values. The roles stay those of a table there.
        return "".join(
            f'<td role="cell" data-name="{escape(headings[place])}"'
            f"{' class=n' if place in numbers else ''}>{escape(value)}</td>"
            for place, value in enumerate(values)
        )

    lines = []
    for number, row in enumerate(rows):
        mark = marks[number] if number < len(marks) else ""
        lines.append(f'<tr role="row" class="{mark}">{cells(row)}</tr>')
    ending = ""
    if foot is not None:
        ending = f'<tfoot role="rowgroup"><tr role="row">{cells(foot)}</tr></tfoot>'
    return (
        f'<div class="scroll"><table role="table"><thead role="rowgroup"><tr role="row">{heads}</tr></thead>'
        f'<tbody role="rowgroup">{"".join(lines)}</tbody>{ending}</table></div>'
    )
