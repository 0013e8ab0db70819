"""A real browser reads streams: `EventSource` of a page from another origin, and its own way to reconnect.

Needs Chromium, which nothing else here does; without it these tests are skipped and say what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.browsers import Relay, Reports, browsing, served_page
from tests.support.server_clients import PlainClient
from tests.support.server_processes import running_server

pytestmark = pytest.mark.browser

WATCHING = """
const server = SERVER, token = TOKEN;
const cursors = {};
async function watch() {
  const topics = {orders: {from_seq: cursors.orders || 0}};
  const headers = {'Content-Type': 'application/json'};
  if (token) headers['Authorization'] = 'Bearer ' + token;
  let answer;
  try {
    answer = await fetch(server + '/v0/watch', {method: 'POST', headers, body: JSON.stringify({topics})});
  } catch (error) {
    report('refused', {});
    if (RETRIES) setTimeout(watch, 200);
    return;
  }
  const session = await answer.json();
  const source = new EventSource(server + session.stream_url + (token ? '?token=' + token : ''));
  source.onopen = () => report('open', {});
  for (const kind of ['record', 'caught-up', 'tombstone', 'topic-deleted'])
    source.addEventListener(kind, (event) => {
      const data = JSON.parse(event.data);
      if (kind === 'record') cursors.orders = data.to_seq;
      report(kind, {data, id: event.lastEventId});
    });
  source.onerror = (event) => {
    if (event.data) report('told', {data: JSON.parse(event.data)});
    report('error', {state: source.readyState});
    // A server that was restarted knows nothing of the session: make another one from the cursor.
    if (source.readyState === EventSource.CLOSED && RETRIES) setTimeout(watch, 200);
  };
}
watch();
"""


def watching(server: str, *, token: str = "", retries: bool = False) -> Callable[[str], str]:
    """The script of a page that watches the topic `orders` and reports what it gets."""
    words = {"SERVER": server, "TOKEN": token, "RETRIES": retries}
    script = WATCHING
    for word, value in words.items():
        script = script.replace(word, json.dumps(value))
    return lambda _: script


def seqs(reports: Reports) -> list[int]:
    """The seqs of all records that the page got."""
    return [record["$seq"] for report in reports.of("record") for record in report["data"]["records"]]


def values(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"data": {"text": f"line {number} \u2028 ü"}} for number in range(start, start + count)]


def test_a_page_of_an_allowed_origin_gets_backlog_and_live_records(browser: str, tmp_path: Path) -> None:
    with running_server(tmp_path, "--cors-origin", "*") as server, PlainClient(server.url) as client:
        client.append("orders", values(5))
        with (
            served_page(watching(server.url)) as (origin, reports),
            browsing(browser, origin, tmp_path / "profile"),
        ):
            reports.until(lambda: bool(reports.of("caught-up")))
            client.append("orders", values(3, 5))
            reports.until(lambda: len(seqs(reports)) == 8)
            client.ask("DELETE", "/topics/orders")
            reports.until(lambda: bool(reports.of("topic-deleted")))
    assert seqs(reports) == list(range(1, 9))
    records = [record for report in reports.of("record") for record in report["data"]["records"]]
    assert [{"data": record["data"]} for record in records] == values(8)
    assert all(report["id"] for report in reports.of("record"))
    assert reports.of("broken") == []


def test_a_page_of_another_origin_gets_nothing(browser: str, tmp_path: Path) -> None:
    with (
        running_server(tmp_path, "--cors-origin", "https://everlog.example") as server,
        served_page(watching(server.url)) as (origin, reports),
        browsing(browser, origin, tmp_path / "profile"),
    ):
        assert reports.next() == {"kind": "refused"}


def cut_and_resume(relay: Relay, reports: Reports, client: PlainClient, count: int) -> None:
    """Cut the connection of a page that has `count` records, append three, and see how it asks for them."""
    reports.until(lambda: len(seqs(reports)) == count and len(reports.of("caught-up")) == count // 3)
    last_id = reports.all[-1]["id"]
    relay.cut()
    client.append("orders", values(3, count))
    reports.until(lambda: len(reports.of("open")) == count // 3 + 1)
    assert f"Last-Event-ID: {last_id}\r\n".encode() in b"".join(relay.received)


def test_a_browser_that_lost_its_connection_goes_on_where_it_was(browser: str, tmp_path: Path) -> None:
    """By itself: it waits as long as the server said, and sends the id of the last event that it got."""
    with running_server(tmp_path, "--cors-origin", "*") as server, PlainClient(server.url) as client:
        client.append("orders", values(3))
        relay = Relay(server.port)
        with (
            served_page(watching(relay.url)) as (origin, reports),
            browsing(browser, origin, tmp_path / "profile"),
        ):
            for count in (3, 6, 9):
                cut_and_resume(relay, reports, client, count)
            reports.until(lambda: len(seqs(reports)) == 12)
        relay.close()
    assert seqs(reports) == list(range(1, 13))
    assert reports.of("broken") == []


def test_a_page_goes_on_after_the_server_was_restarted(browser: str, tmp_path: Path) -> None:
    with running_server(tmp_path, "--cors-origin", "*") as server, PlainClient(server.url) as client:
        client.append("orders", values(4))
        url, port = server.url, server.port
        with (
            served_page(watching(url, retries=True)) as (origin, reports),
            browsing(browser, origin, tmp_path / "profile"),
        ):
            reports.until(lambda: bool(reports.of("caught-up")))
            assert server.stop()[0] == 0
            reports.until(lambda: bool(reports.of("told")))
            assert reports.of("told")[0]["data"]["code"] == "server_shutting_down"
            with running_server(tmp_path, "--cors-origin", "*", port=port), PlainClient(url) as again:
                again.append("orders", values(4, 4))
                reports.until(lambda: len(seqs(reports)) == 8)
    assert seqs(reports) == list(range(1, 9))


def test_a_stream_takes_the_key_from_the_url(browser: str, tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text('api_keys = ["secret"]\n')
    flags = ("--config", tmp_path / "server.toml", "--cors-origin", "*")
    with running_server(tmp_path, *flags, key="secret") as server, PlainClient(server.url) as client:
        sent = client.ask("POST", "/topics/orders", {"records": values(2)}, Authorization="Bearer secret")
        assert sent.status == 201
        with (
            served_page(watching(server.url, token="secret")) as (origin, reports),
            browsing(browser, origin, tmp_path / "profile"),
        ):
            reports.until(lambda: len(seqs(reports)) == 2)
