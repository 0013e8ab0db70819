"""The page on the metrics of the topics server, from the registry of a server that was never started.

Owns the layout of the page; names, kinds, labels and words are those of the metrics themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client.metrics_core import Metric

from tools.reference_pages.markdown import MADE_BY, code, table

_OPENING: Final = f"""# Metrics

{MADE_BY}

What `GET /v0/metrics` tells, made from the server's own registry. It needs the scope `read` if the server
has keys. The text is for Prometheus; with `Accept: application/json` the most important numbers come as one
JSON object. [Operations](../guide/operations.md) says which ones to watch.

Counters begin at 0 with each start of the server. A histogram has `_bucket`, `_sum` and `_count`. Of topics
and of routers the first 1000 by name have numbers of their own.
"""


def metrics_page(metrics: Iterable[Metric]) -> str:
    """The whole page about these metrics."""
    rows = []
    for metric in metrics:
        is_counter = metric.type == "counter" and metric.name != "topics_uptime_ms"
        labels = ", ".join(code(label) for label in getattr(metric, "_labelnames", ()))
        rows.append(
            (code(metric.name + "_total" * is_counter), metric.type, labels, metric.documentation.rstrip("."))
        )
    return _OPENING + "\n" + table(("Metric", "Kind", "Labels", "Means"), rows)
