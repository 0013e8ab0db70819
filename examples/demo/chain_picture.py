"""The chain as a picture: processes as boxes, arrows with the counts of this run.

Owns the layout of the picture; the numbers come from the evidence.
"""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from examples.demo.evidence import Evidence
from examples.demo.records import FILLS_BRIDGE, SETTLED_STRATEGY, STRATEGIES, WORKERS

WIDTH, HEIGHT = 1060, 356
BOX_WIDTH, BOX_HEIGHT = 142, 50
COLUMNS = (4, 234, 464, 694, 914)
ROWS = (12, 104, 196, 288)
BOLT = "M7 0L0 9h5l-2 8 8-10H6l3-7z"


class Box(NamedTuple):
    """A process or a store, at a column and a row."""

    column: int
    row: float
    title: str
    text: str
    was_killed: bool = False

    @property
    def x(self) -> float:
        """The left edge."""
        return COLUMNS[self.column]

    @property
    def y(self) -> float:
        """The upper edge."""
        whole = int(self.row)
        return ROWS[whole] + (self.row - whole) * (ROWS[1] - ROWS[0])


def chain_svg(evidence: Evidence) -> str:
    """Return the picture."""
    killed = {kill.who for kill in evidence.outcome.kills}
    market, seen = len(evidence.market), len(evidence.seen)
    orders = sum(map(len, evidence.orders.values()))
    fills = sum(map(len, evidence.fills.values()))
    settled = len(evidence.fills[SETTLED_STRATEGY])
    done = sum(map(len, evidence.done.values()))
    trades = len(evidence.market.trades)
    symbols = len(evidence.truth["books"])
    venue = Box(0, 1, "venue", f"simulated, {symbols} symbols")
    queue = Box(1, 1, "queue", f"{evidence.market.segments} mapped segments")
    strategies = Box(2, 0, "strategies", " and ".join(STRATEGIES), bool(killed & set(STRATEGIES)))
    router = Box(3, 0, "order router", "one fill for each order")
    bridge = Box(2, 1, "bridge", "queue to topic", "bridge" in killed)
    topic = Box(3, 1, "topic “market”", "topics server")
    watcher = Box(4, 1, "watcher", "server-sent events")
    fills_bridge = Box(2, 2, f"bridge of {FILLS_BRIDGE}", f"of {SETTLED_STRATEGY}")
    jobs = Box(3, 2, "job queue", "topics server, leases")
    workers = Box(4, 2, f"{len(WORKERS)} workers", "leased jobs", bool(killed & set(WORKERS)))
    boxes = [venue, queue, strategies, router, bridge, topic, watcher, fills_bridge, jobs, workers]
    arrows = [
        _right(venue, queue, market),
        _up_right(queue, strategies, trades),
        _right(strategies, router, orders),
        _back(router, strategies, fills),
        _right(queue, bridge, market),
        _right(bridge, topic, market),
        _right(topic, watcher, seen),
        _down_back(router, fills_bridge, settled),
        _right(fills_bridge, jobs, settled),
        _right(jobs, workers, done),
    ]
    if evidence.outcome.lake is not None:
        lake = Box(2, 3, "Spark and lake", "archive, books, audit")
        boxes.append(lake)
        arrows += [_down_right(queue, lake, market), _down_around(topic, lake, market)]
    height = HEIGHT if evidence.outcome.lake is not None else HEIGHT - 92
    parts = "".join([*arrows, *map(_box, boxes)])
    marker = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
    )
    label = "the chain: venue, queue, strategies, bridge, topics, watcher, workers, lake"
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{marker}{parts}</svg>'


def _box(box: Box) -> str:
    bolt = ""
    if box.was_killed:
        place = f"translate({box.x + BOX_WIDTH - 20} {box.y + 7})"
        bolt = f'<path class="bolt" transform="{place}" d="{BOLT}"><title>killed and restarted</title></path>'
    return (
        f'<rect class="box" x="{box.x}" y="{box.y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8"/>'
        f'<text class="box-title" x="{box.x + 11}" y="{box.y + 21}">{escape(box.title)}</text>'
        f'<text class="box-text" x="{box.x + 11}" y="{box.y + 38}">{escape(box.text)}</text>{bolt}'
    )


def _right(start: Box, end: Box, count: int) -> str:
    y = start.y + BOX_HEIGHT / 2 - (9 if start.row == 0 else 0)
    left, right = start.x + BOX_WIDTH, end.x
    return _arrow(f"M{left + 3} {y}H{right - 3}", (left + right) / 2 + 6, y - 6, count)


def _back(start: Box, end: Box, count: int) -> str:
    y = start.y + BOX_HEIGHT / 2 + 13
    left, right = end.x + BOX_WIDTH, start.x
    return _arrow(f"M{right - 3} {y}H{left + 3}", (left + right) / 2, y + 14, count)


def _up_right(start: Box, end: Box, count: int) -> str:
    x, y = start.x + BOX_WIDTH / 2, end.y + BOX_HEIGHT / 2
    return _arrow(f"M{x} {start.y - 3}V{y}H{end.x - 3}", (x + end.x) / 2, y - 6, count, " trades")


def _down_right(start: Box, end: Box, count: int) -> str:
    x, y = start.x + BOX_WIDTH / 2, end.y + BOX_HEIGHT / 2
    return _arrow(f"M{x} {start.y + BOX_HEIGHT + 3}V{y}H{end.x - 3}", (x + end.x) / 2, y - 6, count)


def _down_back(start: Box, end: Box, count: int) -> str:
    """From the router, between the topic's row and its left neighbour, down to the bridge of fills."""
    x, y = end.x + BOX_WIDTH + 14, end.y + BOX_HEIGHT / 2 - 14
    path = f"M{start.x + 22} {start.y + BOX_HEIGHT + 3}v16H{x}V{y}H{end.x + BOX_WIDTH + 3}"
    return _arrow(path, (x + start.x + 22) / 2 + 6, start.y + BOX_HEIGHT + 33, count, " fills")


def _down_around(start: Box, end: Box, count: int) -> str:
    """From the topic, right of the job queue, down to the lake."""
    x, y = start.x + BOX_WIDTH + 22, end.y + BOX_HEIGHT / 2
    path = f"M{start.x + BOX_WIDTH - 22} {start.y + BOX_HEIGHT + 3}v14H{x}V{y}H{end.x + BOX_WIDTH + 3}"
    return _arrow(path, (end.x + BOX_WIDTH + x) / 2, y - 6, count)


def _arrow(path: str, x: float, y: float, count: int, what: str = "") -> str:
    return (
        f'<path class="arrow" d="{path}" marker-end="url(#tip)"/>'
        f'<text class="count" x="{x:.0f}" y="{y:.0f}" text-anchor="middle">{count:,}{what}</text>'
    )
