"""The console without a mouse, while lists change under it, and on a phone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everlog.queue import Queue
from tests.browser.devtools import Page
from tests.browser.test_accessibility import PAGES, fill
from tests.server.test_lake_routes import make_lake
from tests.support.market_queues import simulated_queue
from tests.support.processes import eventually
from tests.support.server_clients import PlainClient
from tests.support.server_processes import running_server

pytestmark = pytest.mark.browser
SCROLLER = "document.activeElement.matches('ev-rows .scroller')"
# What Tab must reach: everything that takes the focus and can be seen.
REACHABLE = """[...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex]')]
  .filter((e) => e.checkVisibility({visibilityProperty: true}) && !e.disabled && e.tabIndex >= 0
    && !e.closest('[aria-hidden=true]'))"""
LISTS = ("topics", "consumers", "jobs", "jobs/mails", "routers", "bus", "pipeline")
LETTERS = {
    "t": "topics",
    "c": "consumers",
    "j": "jobs",
    "r": "routers",
    "q": "bus",
    "m": "market",
    "p": "pipeline",
    "o": "overview",
}


def tab_until(page: Page, expression: str, presses: int = 60) -> None:
    """Press Tab until something is true of what has the focus."""
    for _ in range(presses):
        if page.evaluate(f"Boolean({expression})"):
            return
        page.press("Tab")
    raise AssertionError(f"{presses} times Tab did not lead to {expression}")


def test_g_and_the_letter_of_a_page_opens_it(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        page.open(server.url)
        for letter, path in LETTERS.items():
            page.press("g")
            page.press(letter)
            page.until(f"location.hash === '#/{path}'")


@pytest.mark.parametrize("place", [place for place in PAGES if place not in ("bus", "market", "pipeline")])
def test_tab_reaches_every_control_and_leaves_each_with_its_focus_shown(
    page: Page, tmp_path: Path, place: str
) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        fill(client)
        page.open(f"{server.url}/#/{place}")
        page.until(PAGES[place][0])
        page.until("!document.querySelector('ev-overview') || document.querySelector('.cards')")
        page.evaluate(f"window.reachable = {REACHABLE}; window.reached = new Set()")
        wanted = page.evaluate("reachable.length")
        for _ in range(wanted + 10):
            page.press("Tab")
            shown = page.evaluate(
                "(() => { const e = document.activeElement; reached.add(e);"
                "return e === document.body || getComputedStyle(e).outlineStyle !== 'none'"
                " || e.outerHTML.slice(0, 80) })()"
            )
            assert shown is True, shown
        missed = page.evaluate(
            "reachable.filter((e) => e.isConnected && !reached.has(e)).map((e) => e.outerHTML.slice(0, 100))"
        )
        assert missed == []


def test_jobs_are_selected_opened_and_closed_with_keys(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        fill(client)
        page.open(f"{server.url}/#/jobs/mails")
        page.until(PAGES["jobs/mails"][0])
        tab_until(page, SCROLLER)
        page.press("ArrowDown", 2)
        page.press(" ")
        page.until_text("1 job selected", ".bulk")
        page.press(" ")
        page.until_text("9 jobs in this view", ".bulk")
        page.press("Enter")
        page.until_text("Job 2", ".detail")
        tab_until(page, "document.activeElement.closest('.detail')")
        page.press("Escape")
        page.until(f"document.querySelector('.detail').hidden && {SCROLLER}")
        tab_until(page, "document.activeElement.innerText?.startsWith('Cancel all')")
        page.press(" ")
        page.until_text("Cancel 9 jobs?", "dialog")
        page.press("Escape")
        page.until("!document.querySelector('dialog')")
        assert page.evaluate("document.activeElement.innerText").startswith("Cancel all")


def test_a_list_that_is_refreshed_keeps_its_rows_and_the_focus(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        fill(client)
        page.open(f"{server.url}/#/jobs/mails")
        page.until(PAGES["jobs/mails"][0])
        page.evaluate(
            "{const rows = document.querySelector('ev-rows'); window.sets = 0; const set = rows.set;"
            "rows.set = function (...given) { window.sets += 1; return set.apply(this, given); };"
            "window.cell = rows.querySelector('[data-index=\"4\"] .mono');}"
        )
        page.click("ev-rows [type=checkbox]")
        page.until("sets > 2")
        assert page.evaluate("cell.isConnected")  # a click that began on it ends on it
        assert page.evaluate("document.activeElement.type + document.activeElement.checked") == "checkboxtrue"
        client.append("mails", [{"data": 1}])
        page.until_text("8", ".tiles dd")
        page.until("document.querySelector('ev-rows').entries.length === 10")
        assert page.evaluate("document.querySelector('ev-rows').entries.length") == 10


def test_what_is_looked_at_stays_in_place_while_older_records_leave(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.append("fast", [{"data": 0}])
        page.open(f"{server.url}/#/topics/fast")
        rows = "document.querySelector('ev-records ev-rows')"
        page.until(f"{rows}?.entries.length === 1")
        for _ in range(20):
            client.append("fast", [{"data": 1}] * 1000)
        page.until(f"{rows}.entries.at(-1).$seq === 20001")
        page.evaluate(f"{rows}.scroller.scrollTop = 10000 * {rows}.rowHeight")
        top = f"{rows}.entries[Math.round({rows}.scroller.scrollTop / {rows}.rowHeight)].$seq"
        before = page.evaluate(top)
        for _ in range(3):
            client.append("fast", [{"data": 2}] * 1000)
        page.until(f"{rows}.entries.at(-1).$seq === 23001")
        assert page.evaluate(f"{rows}.entries[0].$seq") == 3002
        assert page.evaluate(top) == before


def test_enter_on_a_gap_opens_no_record(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.append("orders", [{"data": n} for n in range(60)], config={"cap_records": 50})
        client.append("orders", [{"data": 1}])
        page.open(f"{server.url}/#/topics/orders")
        page.until("document.querySelector('ev-records').entries.length > 49")
        page.write(".jump", "1")
        page.press("Enter")
        page.until_text("are gone: evicted by a cap", "ev-records")
        tab_until(page, SCROLLER)
        page.press("Home")
        page.press("Enter")
        page.press("ArrowDown")
        page.press("Enter")
        page.until_text("Record", ".detail")
        assert "NaN" not in page.text()
        page.press("Escape")
        page.until("document.querySelector('.detail').hidden")


def test_a_node_of_the_graph_keeps_the_focus_while_flows_change(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        fill(client)
        page.open(f"{server.url}/#/routers")
        page.until(PAGES["routers"][0])
        tab_until(page, "document.activeElement.matches('.graph .node')")
        client.append("orders", [{"data": n} for n in range(5000)])
        page.until("document.querySelector('.edge.flowing') || document.querySelector('.edge.behind')")
        assert page.evaluate("document.activeElement.matches('.graph .node')")
        page.press("Enter")
        page.until("location.hash.startsWith('#/topics/orders')")


def test_the_question_for_a_key_stays_until_it_is_answered(page: Page, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[[key]]\nname = "one"\nkey = "secret"\n')
    keys.chmod(0o600)
    (tmp_path / "server.toml").write_text(f'api_keys_file = "{keys}"\n')
    with running_server(tmp_path, "--config", tmp_path / "server.toml", key="secret") as server:
        page.open(server.url)
        page.until_text("This server needs a key", "dialog")
        page.press("Escape", 3)
        page.until("document.querySelector('dialog').open")
        page.write("#key", "secret")
        page.press("Enter")
        page.until_text("since the start", ".tiles")


def test_a_bulk_action_that_fails_says_how_far_it_came(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        fill(client)
        page.open(f"{server.url}/#/jobs/mails")
        page.until_text("9 jobs in this view", ".bulk")
        page.click(".bulk button", "Retry all")
        page.until_text("Retry 9 jobs?", "dialog")
        server.stop_cleanly()
        page.click("dialog button", "Retry")
        page.until_text("0 jobs retried, then: the server", ".toast")
        assert page.evaluate("document.querySelector('.progress').hidden")


def test_lists_show_all_their_columns_on_a_phone_and_what_is_opened(page: Page, tmp_path: Path) -> None:
    queue = tmp_path / "bus" / "sim"
    simulated_queue(queue, symbols=2, seconds=2, rate=200, kinds="l2,trades")
    Queue.open_subscriber(queue, "strategy", start="earliest").close()
    lake = make_lake(tmp_path / "lake")
    with (
        running_server(tmp_path, "--bus", tmp_path / "bus", "--lake", lake) as server,
        PlainClient(server.url) as client,
    ):
        fill(client)
        page.size(360, 780)
        for place in LISTS:
            is_there, opened = PAGES[place]
            page.open(f"{server.url}/?{place}#/{place}")
            page.until(
                "document.querySelectorAll('ev-rows .space .row').length" if place == "bus" else is_there
            )
            cut = page.evaluate(
                """(() => { const edge = document.querySelector('ev-rows').getBoundingClientRect().right;
                return [...document.querySelectorAll('ev-rows .head > div')].filter((e) => e.checkVisibility()
                  && (e.getBoundingClientRect().right > edge || e.scrollWidth > e.clientWidth))
                  .map((e) => e.innerText) })()"""
            )
            assert cut == [], place
            # Numbers and states are never cut, only names and texts.
            cut = page.evaluate(
                """[...document.querySelectorAll('ev-rows .space .row > .end')]
                .filter((e) => e.checkVisibility() && e.scrollWidth > e.clientWidth)
                .map((e) => e.innerText)"""
            )
            assert cut == [], place
            current = page.evaluate(
                "(() => { const r = document.querySelector('nav [aria-current]').getBoundingClientRect();"
                "return [r.left, r.right] })()"
            )
            assert 0 <= current[0] < current[1] <= 361, (place, current)  # rounded
            if opened is not None:
                page.click(*opened)
                head = json.dumps(".detail h2")
                eventually(
                    f"{place}: what is opened can be seen",
                    lambda head=head: page.evaluate(
                        f"document.elementFromPoint(180, 400).closest('.detail') && "
                        f"document.querySelector({head}).getBoundingClientRect().top > 0"
                    ),
                )
