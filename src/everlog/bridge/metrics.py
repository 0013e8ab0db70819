"""The counters of a bridge, for Prometheus.

everlog_bridge_forwarded_records_total   records that are confirmed on the other side
everlog_bridge_batches_total             requests or appends that carried them
everlog_bridge_deduplicated_total        batches that had arrived before
everlog_bridge_retries_total             tries that failed and were repeated
everlog_bridge_gaps_total                gap messages written
everlog_bridge_lag_bytes                 of the queue, behind the confirmed position (queue to topic)
everlog_bridge_lag_records               of the topic, behind the confirmed position (topic to queue)
everlog_bridge_lag_seconds               age of the last confirmed record while there are others behind it
everlog_bridge_connected                 1 while the server answers
everlog_bridge_last_seq                  the source's seq of the last confirmed record
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Final, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from everlog.fs import OsFs, replace_file

HOST: Final = "127.0.0.1"


class BridgeMetrics:
    """The counters of one bridge; `MetricsServer` serves them."""

    def __init__(self, bridge: str, direction: str) -> None:
        self.registry = CollectorRegistry()
        labels = {"bridge": bridge, "direction": direction}

        def counter(name: str, text: str) -> Counter:
            return Counter(f"everlog_bridge_{name}", text, list(labels), registry=self.registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"everlog_bridge_{name}", text, list(labels), registry=self.registry)

        self.forwarded = counter("forwarded_records", "Records confirmed on the other side.").labels(**labels)
        self.batches = counter("batches", "Batches confirmed on the other side.").labels(**labels)
        self.deduplicated = counter("deduplicated", "Batches that were there already.").labels(**labels)
        self.retries = counter("retries", "Tries that failed and were repeated.").labels(**labels)
        self.gaps = counter("gaps", "Gap messages written.").labels(**labels)
        self.lag_bytes = gauge("lag_bytes", "Bytes of the queue not confirmed yet.").labels(**labels)
        self.lag_records = gauge("lag_records", "Records of the topic not confirmed yet.").labels(**labels)
        self.lag_seconds = gauge("lag_seconds", "Age of the last confirmed record.").labels(**labels)
        self.connected = gauge("connected", "1 while the server answers.").labels(**labels)
        self.last_seq = gauge("last_seq", "Seq of the last confirmed record.").labels(**labels)


class MetricsServer:
    """Serves the metrics on the loopback interface for as long as it is open."""

    def __init__(self, metrics: BridgeMetrics, port: int, port_file: str | None = None) -> None:
        self._server, self._thread = start_http_server(port, addr=HOST, registry=metrics.registry)
        self.port = int(self._server.server_port)
        if port_file is not None:
            replace_file(OsFs(), os.path.abspath(port_file), f"{HOST}:{self.port}\n".encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
