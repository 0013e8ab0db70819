"""The routes of jobs as the contract describes them, over a plain list, for the tests of the page of jobs.

Owns 100,000 jobs in memory and nothing else; the files of the console are those of the package.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from everlog.server.console_routes import POLICY, console_files

STATES = ("ready", "delayed", "leased", "failed")
TRACE = "line 1\nline 2 <script>"
ERROR = {"type": "Timeout", "message": "smtp.example <b>did not answer</b>", "trace": TRACE}
OTHER = {"type": "ValueError", "message": "no address", "trace": "line 3"}


class JobsOfAServer:
    """The state behind the routes."""

    def __init__(self, jobs: int) -> None:
        self.states = {seq: STATES[seq % 4] for seq in range(1, jobs + 1)}
        self.calls: list[tuple[str, Any]] = []
        self.dead = 2500
        self.is_paused = False
        self.schedule_is_paused = False

    def job(self, seq: int) -> dict[str, Any]:
        """A job as lists show it."""
        error = (ERROR if seq % 8 == 3 else OTHER) if self.states[seq] == "failed" else None
        return {
            "$seq": seq,
            "state": self.states[seq],
            "deliveries": seq % 5,
            "priority": 0,
            "run_at": None,
            "node": None,
            "lease_id": None,
            "deadline": None,
            "last_error": error,
            "unique_key": None,
            "concurrency_key": None,
        }

    def counts(self) -> dict[str, int]:
        """How many jobs there are of each state."""
        found = dict.fromkeys(STATES, 0)
        for state in self.states.values():
            found[state] += 1
        return {**found, "done_total": 1234, "failed_total": 56, "dead_lettered": self.dead}

    def page(self, query: dict[str, list[str]]) -> dict[str, Any]:
        """A page of jobs by seq."""
        wanted = query.get("state", [None])[0]
        after, limit = int(query.get("cursor", ["0"])[0]), int(query["limit"][0])
        seqs = [seq for seq, state in self.states.items() if seq > after and wanted in (None, state)]
        answer = {"jobs": [self.job(seq) for seq in seqs[:limit]], "counts": self.counts()}
        return answer | ({"next_cursor": str(seqs[limit - 1])} if len(seqs) > limit else {})

    def answer(  # noqa: PLR0911
        self, method: str, path: str, query: dict[str, list[str]], body: Any
    ) -> dict[str, Any] | None:
        """What a call is answered with; None: 404."""
        config = {"type": "queue", "dead_letter": "mails.dead", "paused": self.is_paused}
        if method != "GET":
            self.calls.append((path, body))
        match path.removeprefix("/v0"):
            case "/overview":
                return {"topics": 1}
            case "/metrics":
                return {"queue_topics": 1}
            case "/topics":
                return {"topics": [{"topic": "mails", "type": "queue"}]}
            case "/topics/mails":
                return {"topic": "mails", "config": config, "queue": {}}
            case "/topics/mails/jobs":
                return self.page(query)
            case "/topics/mails/pause" | "/topics/mails/resume":
                self.is_paused = path.endswith("pause")
                return {}
            case "/topics/mails/jobs/cancel":
                return {"cancelled": sum(self.states.pop(seq, None) is not None for seq in body["seqs"])}
            case "/topics/mails/jobs/retry":
                self.states.update(dict.fromkeys(body["seqs"], "ready"))
                return {"retried": len(body["seqs"])}
            case "/topics/mails.dead/redrive":
                moved = self.dead if body.get("dry_run") else min(body["limit"], self.dead)
                self.dead -= 0 if body.get("dry_run") else moved
                return {"moved": moved, "left": 0 if body.get("dry_run") else self.dead}
            case "/schedules":
                schedule = {"name": "nightly", "topic": "mails", "cron": "0 3 * * *", "timezone": "UTC"}
                times = {"next_ts": 1_900_000_000_000, "last_ts": None, "fired_total": 3}
                return {"schedules": [{**schedule, **times, "record": {}, "paused": self.schedule_is_paused}]}
            case "/schedules/nightly":
                self.schedule_is_paused = body["paused"]
                return {}
            case other if other.startswith("/topics/mails/jobs/"):
                job = self.job(int(other.rpartition("/")[2]))
                attempt = {"delivery": 1, "node": "w1", "claimed_ts": 1000, "ended_ts": 3500}
                return {**job, "attempts": [{**attempt, "outcome": "nacked", "error": ERROR}]}
        return None


@contextmanager
def serving_jobs(jobs: int) -> Iterator[tuple[str, JobsOfAServer]]:
    """A server with jobs; gives its address and its state."""
    state, files = JobsOfAServer(jobs), console_files()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
            name = "index.html" if parts.path == "/" else parts.path.removeprefix("/console/")
            if name in files:
                self._send(200, files[name].content, files[name].content_type.decode())
                return
            answer = state.answer(self.command, parts.path, parse_qs(parts.query), body)
            error = {"error": {"code": "not_found", "message": "no such route"}}
            text = json.dumps(error if answer is None else answer)
            self._send(404 if answer is None else 200, text.encode(), "application/json")

        do_GET = do_POST = do_PUT = handle_any

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", POLICY.decode())
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", state
        finally:
            server.shutdown()
            thread.join()
