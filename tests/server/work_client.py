"""A worker at the other end of GET /work: reads its stream frame by frame from a real socket."""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import Any, NamedTuple

from tests.support.http_cases import PATIENCE_S, query_text, topic_path


class WorkFrame(NamedTuple):
    """One frame; `event` is "retry" or "heartbeat" for the two that are no events."""

    event: str
    data: Any = None
    id: str = ""


class WorkClient:
    """One connection. `status` and `headers` are those of the answer; a stream is open if it is 200."""

    def __init__(
        self,
        address: tuple[str, int],
        queue: str,
        node: str = "w",
        *,
        accept: str | None = "text/event-stream",
        bearer: str | None = None,
        **query: object,
    ) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
        headers = {} if accept is None else {"Accept": accept}
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        self._connection.request(
            "GET", topic_path(queue, "work") + query_text({"node": node, **query}), headers=headers
        )
        assert self._connection.sock is not None
        self._socket = self._connection.sock
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self.headers = {name.lower(): value for name, value in self._response.getheaders()}

    def refusal(self) -> str:
        """The code of the error that came instead of a stream."""
        return str(json.loads(self._response.read())["error"]["code"])

    def frame(self) -> WorkFrame | None:
        """Wait for the next frame; None at the end of the stream."""
        fields: dict[str, str] = {}
        while line := self._response.readline().decode():
            if line == "\n":
                return self._frame(fields)
            name, _, value = line.rstrip("\n").partition(":")
            assert name not in fields, f"{name} came twice"
            fields[name] = value.strip()
        assert not fields, f"the stream ended in the middle of {fields}"
        return None

    @staticmethod
    def _frame(fields: dict[str, str]) -> WorkFrame:
        if "retry" in fields:
            assert fields == {"retry": "2000"}
            return WorkFrame("retry")
        if "" in fields:
            assert fields == {"": "hb"}
            return WorkFrame("heartbeat")
        return WorkFrame(fields["event"], json.loads(fields["data"]), fields.get("id", ""))

    def job(self) -> dict[str, Any]:
        """Wait for the next job; nothing else may come before it."""
        frame = self.frame()
        assert frame is not None
        assert frame.event == "job", frame
        assert frame.id == str(frame.data["$seq"])
        return dict(frame.data)

    def jobs(self, count: int) -> list[int]:
        """Wait for so many jobs; their seqs."""
        return [self.job()["$seq"] for _ in range(count)]

    def start(self) -> WorkClient:
        """The first line, which every stream begins with."""
        assert self.status == 200, (self.status, self._response.read())
        assert self.frame() == WorkFrame("retry")
        return self

    def is_silent(self, seconds: float) -> bool:
        """Whether nothing comes for a while."""
        deadline_s = time.monotonic() + seconds
        self._socket.settimeout(seconds)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK) and time.monotonic() >= deadline_s
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(PATIENCE_S)

    def kill(self) -> None:
        """Go away as a process that is killed: without a word, at once."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._response.close()
        self._connection.close()
        self._socket.close()
