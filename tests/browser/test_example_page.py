"""The page of `examples/browser` in a real browser: both transports, with a key, over restarts and gaps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everlog.client import Client, NewRecord
from tests.browser.browsers import Reports, browsing, served_page
from tests.support.server_processes import running_server

pytestmark = pytest.mark.browser
PAGE = Path(__file__).resolve().parents[2] / "examples" / "browser" / "index.html"
KEY = "key/+1?~"


def script(server: str, via: str) -> str:
    """The script of the page, told where the server is, and telling the test what it shows."""
    settings = json.dumps({"server": server, "topic": "orders", "via": via, "key": KEY})
    told = "window.everlogReport = (kind, data) => report(kind, {data});"
    text = PAGE.read_text(encoding="utf-8").partition("<script>")[2].partition("</script>")[0]
    return f"window.everlogSettings = {settings};{told}{text}"


def shown(reports: Reports) -> list[int]:
    return [record["$seq"] for report in reports.of("record") for record in report["data"]["records"]]


@pytest.mark.parametrize("via", ["sse", "ws"])
def test_the_page_shows_every_record_once_over_a_restart_and_says_what_is_gone(
    browser: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, via: str
) -> None:
    monkeypatch.setenv("TOPICS_API_KEYS", KEY)
    with running_server(tmp_path, "--cors-origin", "*", key=KEY) as server:
        url, port = server.url, server.port
        with Client(url, KEY) as client:
            client.put_topic("orders", {"cap_records": 5, "durability": "fsync"})
            client.append_many("orders", [NewRecord(number) for number in range(3)])
        with (
            served_page(lambda _: script(url, via)) as (origin, reports),
            browsing(browser, origin, tmp_path / "profile"),
        ):
            reports.until(lambda: shown(reports) == [1, 2, 3])
            server.kill()
            with (
                running_server(tmp_path, "--cors-origin", "*", port=port, key=KEY) as again,
                Client(again.url, KEY) as client,
            ):
                # The page may be back before these or after them; either way it misses nothing silently.
                client.append_many("orders", [NewRecord(number) for number in range(20)])
                reports.until(lambda: 23 in shown(reports))
    gaps = [report["data"] for report in reports.of("gap")]
    lost = {seq for gap in gaps for seq in range(gap["gap_from"], gap["gap_to"] + 1)}
    assert len(shown(reports)) == len(set(shown(reports)))
    assert set(shown(reports)) | lost >= set(range(1, 24))
    assert reports.of("disconnected")
    assert reports.of("refused") == []
