"""The pages of consumers and routers in a real browser: lag and flow, reset with a preview, deletion."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.devtools import Page
from tests.browser.test_console_shell import keep_picture, shown_width
from tests.support.server_clients import PlainClient
from tests.support.server_processes import running_server

pytestmark = pytest.mark.browser


def records(count: int) -> list[dict[str, object]]:
    return [{"data": number} for number in range(count)]


def test_consumers_show_their_lag_and_are_reset_after_a_preview(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.append("orders", records(50), config={"cap_records": 40})
        client.append("payments", records(5))
        for name, seq in (("billing", 21), ("late", 12)):
            client.ask("PUT", f"/topics/orders/consumers/{name}", {"start": {"seq": seq}})
        client.ask("PUT", "/topics/payments/consumers/holding", {"hold": True})
        page.open(server.url)
        page.click(".alert.warning a", "Show the consumers")
        page.until("document.querySelector('ev-rows')?.entries.length === 3")
        page.until_text("30", "ev-rows")
        page.until_text("at risk", "ev-rows")
        page.until_text("lost records to eviction, or soon will", ".alerts")
        page.click("ev-rows .row", "billing")
        page.until_text("20 of 50", ".detail")
        page.evaluate("document.querySelector('#reset-kind').value = 'seq'")
        page.evaluate("document.querySelector('#reset-kind').dispatchEvent(new Event('change'))")
        page.write(".detail form input", "41")
        page.click(".detail button", "Preview")
        page.until_text("From 20 to 40: 20 records would be left out", ".detail")
        assert client.ask("GET", "/topics/orders/consumers/billing").json["cursor"] == 20
        keep_picture(page, "consumers", tmp_path)
        page.click(".detail button.primary", "Reset")
        page.click("dialog button", "Reset")
        page.until_text("The cursor is at 40")
        assert client.ask("GET", "/topics/orders/consumers/billing").json["cursor"] == 40
        page.until_text("10 records", ".detail")
        client.append("orders", records(7))
        page.until_text("17 records", ".detail")  # it follows
        page.click(".detail button", "Delete the consumer")
        page.click("dialog button", "Delete")
        page.until("document.querySelector('ev-rows').entries.length === 2")
        assert page.unnamed() == []


def test_routers_are_a_graph_with_flow_and_lag(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        edges = {
            "eu": ("orders", "orders.eu"),
            "us": ("orders", "orders.us"),
            "all": ("orders.eu", "reports"),
        }
        for name, (source, dest) in edges.items():
            client.ask("PUT", f"/routers/{name}", {"source": source, "dest": dest})
        client.ask("PUT", "/routers/back", {"source": "reports", "dest": "orders", "allow_cycle": True})
        client.ask("DELETE", "/routers/back")
        page.open(f"{server.url}/#/routers")
        page.until("document.querySelectorAll('.graph .node').length === 4")
        client.append("orders", records(300))
        page.until_text("300", "ev-rows")
        columns = page.evaluate(
            "Object.fromEntries([...document.querySelectorAll('.graph .node')].map((node) =>"
            " [node.ariaLabel, node.querySelector('rect').x.baseVal.value]))"
        )
        assert columns["orders"] < columns["orders.eu"] == columns["orders.us"] < columns["reports"]
        client.append("orders", records(900))
        page.until("document.querySelector('.edge.flowing')")
        keep_picture(page, "routers", tmp_path)
        page.size(390, 844)
        width, content = shown_width(page)
        assert content <= width
        page.size(1280, 900)
        page.click(".graph .node", "orders.eu")
        page.until("location.hash === '#/topics/orders.eu'")


def test_a_circle_of_routers_is_drawn(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        for name, source, dest in (("ab", "a", "b"), ("bc", "b", "c"), ("ca", "c", "a")):
            put = client.ask("PUT", f"/routers/{name}", {"source": source, "dest": dest, "allow_cycle": True})
            assert put.status == 201
        page.open(f"{server.url}/#/routers")
        page.until("document.querySelectorAll('.graph .node').length === 3")
        page.open(f"{server.url}/?empty#/consumers")
        page.until_text("No consumers")
