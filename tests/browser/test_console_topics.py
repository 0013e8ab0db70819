"""The pages of topics in a real browser: long lists, a live tail that says what it leaves out, actions."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from everlog.topics import Engine
from tests.browser.devtools import Page
from tests.browser.test_console_shell import keep_picture, shown_width
from tests.support.http_cases import running
from tests.support.server_clients import PlainClient
from tests.support.server_processes import running_server

pytestmark = pytest.mark.browser
ENTRIES = "document.querySelector('ev-records').entries"
HOSTILE = {
    "html": "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>",
    "link": "javascript:alert(1)",
    "control": "a\u0000b\u001b[31mred\u202eesrever\u2028line",
    "huge": "x" * 300_000,
    "big": 18446744073709551615,
    "deep": [[[[[[[[["end"]]]]]]]]],
    "many": list(range(5000)),
    "</script>": {"__proto__": {"polluted": True}},
}


def order(number: int, tag: str = "eu") -> dict[str, object]:
    return {"data": {"id": number, "side": "buy", "price": 101.25 + number % 7}, "tag": tag, "node": "web-1"}


def put_topics(engine: Engine, numbers: range) -> None:
    for number in numbers:
        engine.put_topic(f"t{number:06}")


def test_100_000_topics_are_listed_searched_and_sorted_without_stutter(page: Page) -> None:
    with running() as server:
        engine = server.app.engine
        assert engine is not None
        for first in range(0, 100_000, 1000):
            server.call(partial(put_topics, engine, range(first, first + 1000)))
        server.api().append("t099999", [order(1)] * 3)
        page.open(f"http://127.0.0.1:{server.server.address[1]}/#/topics")
        page.until_text("100,000", ".page-head")
        page.until("document.querySelectorAll('ev-rows .space .row').length > 5")
        assert page.evaluate("document.querySelectorAll('ev-rows .space .row').length") < 100
        # The longest time between two pictures while it scrolls through what is loaded.
        longest = page.evaluate(
            """(async () => {
              const scroller = document.querySelector('ev-rows .scroller');
              let longest = 0, before = performance.now();
              for (let step = 0; step < 120; step += 1) {
                scroller.scrollTop += 1500;
                await new Promise(requestAnimationFrame);
                longest = Math.max(longest, performance.now() - before);
                before = performance.now();
              }
              return longest;
            })()"""
        )
        assert longest < 1000
        shown = page.evaluate("document.querySelector('ev-rows .space .row a').innerText")
        server.api().append(shown, [order(1)] * 2)
        row = f"[...document.querySelectorAll('ev-rows .row')].find((e) => e.innerText.startsWith('{shown}'))"
        page.until(f"{row}?.children[3].innerText === '2'")  # what can be seen is kept up to date
        page.write("input[type=search]", "99999")
        page.until_text("1 topic of 100,000 found", ".page-head")
        page.write("input[type=search]", "")
        page.press("Enter")
        page.evaluate("document.querySelector('input[type=search]').dispatchEvent(new Event('input'))")
        page.until("document.querySelector('ev-rows').entries.length > 1")  # no longer the one that was found
        page.click("button.sorter", "Records")
        page.until("document.querySelector('ev-rows').entries[0]?.topic === 't099999'")
        page.evaluate("document.querySelector('ev-rows .scroller').focus()")
        page.press("End")
        page.press("ArrowUp")
        page.press("Enter")
        page.until("location.hash.startsWith('#/topics/t0')")
        page.until_text("No records here")


def test_an_empty_server_says_how_to_begin(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        page.open(f"{server.url}/#/topics")
        page.until_text("everlog topic append orders")
        assert page.unnamed() == []


def test_a_tail_follows_pauses_filters_and_jumps(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.append("orders", [order(number, "eu" if number % 2 else "us") for number in range(400)])
        page.open(f"{server.url}/#/topics/orders")
        page.until(f"{ENTRIES}.at(-1)?.$seq === 400")
        page.evaluate(
            "{const real = window.fetch; window.flying = 0; window.fetch = async (...given) => {"
            "if (!given[0].includes('/diff')) return real(...given);"
            "window.flying += 1; const answer = await real(...given); await answer.clone().text();"
            "window.flying -= 1; return answer; }; }"
        )
        client.append("orders", [order(400)])
        page.until(f"{ENTRIES}.at(-1)?.$seq === 401 && flying > 0")
        page.click("button", "Pause")
        page.until_text("paused", ".toolbar")
        client.append("orders", [order(401)] * 9)
        page.until("flying === 0")
        page.evaluate("new Promise((go) => setTimeout(go, 100))")
        assert page.evaluate(f"{ENTRIES}.at(-1).$seq") == 401  # what was under way is not shown either
        page.click("button", "Resume")
        page.until(f"{ENTRIES}.at(-1)?.$seq === 410")
        page.write(".toolbar input[type=search]", '["data.id","Lt",3]')
        page.write(".jump", "1")
        page.click("button", "Show")
        page.until(f"{ENTRIES}.length === 3")
        page.write(".toolbar input[type=search]", "us")
        page.click("button", "Show")
        page.until(f"{ENTRIES}.length === 200 && {ENTRIES}.every((each) => each.$tag === 'us')")
        page.write(".toolbar input[type=search]", "[nonsense")
        page.click("button", "Show")
        page.until_text("The filter is not JSON")
        page.write(".toolbar input[type=search]", "")
        page.click("button", "Latest")
        page.until("document.querySelector('ev-records .problem').hidden")
        page.until(f"{ENTRIES}.at(-1)?.$seq === 410")
        page.evaluate("document.querySelector('ev-records ev-rows .scroller').focus()")
        page.press("End")
        page.press("Enter")
        page.until_text("Record 410", ".detail")
        keep_picture(page, "records", tmp_path)
        page.prefer("dark")
        keep_picture(page, "records-dark", tmp_path)
        page.size(390, 844)
        width, content = shown_width(page)
        assert content <= width
        assert page.unnamed() == []


def test_a_fast_tail_shows_every_record_once_in_order_and_counts_what_leaves_the_view(
    page: Page, tmp_path: Path
) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.append("fast", [order(0)])
        page.open(f"{server.url}/#/topics/fast")
        page.until(f"{ENTRIES}?.length === 1")
        for batch in range(60):  # more than the view holds
            client.append("fast", [order(batch)] * 500)
        page.until(f"{ENTRIES}.at(-1)?.$seq === 30001")
        seqs = page.evaluate(f"{ENTRIES}.map((each) => each.$seq)")
        assert seqs == list(range(10_002, 30_002))
        page.until_text("10,001 earlier ones left the view", ".toolbar")


def test_a_tail_shows_5000_records_a_second_without_a_hole(page: Page, tmp_path: Path) -> None:
    seconds, rate, batch = 3, 5000, 250
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.append("fast", [order(0)])
        page.open(f"{server.url}/#/topics/fast")
        page.until(f"{ENTRIES}?.length === 1")
        page.evaluate(
            "(() => { const rows = document.querySelector('ev-records'); const add = rows.add;"
            "window.seen = []; rows.add = function (entry) { window.seen.push(entry.$seq ?? entry.banner);"
            "return add.call(this, entry); }; })()"
        )
        start_s = time.monotonic()
        for number in range(seconds * rate // batch):
            client.append("fast", [order(number)] * batch)
            # Not faster than the rate; whether the page keeps up is decided by what it has, not by when.
            time.sleep(max(0.0, start_s + (number + 1) * batch / rate - time.monotonic()))
        page.until(f"{ENTRIES}.at(-1)?.$seq === {1 + seconds * rate}")
        assert page.evaluate("window.seen") == list(range(2, 2 + seconds * rate))  # and no gap between them
        assert page.evaluate(f"{ENTRIES}.filter((each) => each.banner).length") == 0
        page.until_text(f"{1 + seconds * rate:,} records shown", ".toolbar")


def test_gaps_and_deleted_records_stand_where_they_were_with_their_reason(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.append("capped", [order(n) for n in range(50)], config={"cap_records": 30})
        client.append("capped", [order(n, "gone" if n % 10 == 0 else "eu") for n in range(50, 70)])
        assert client.ask("POST", "/topics/capped/delete", {"match": "gone"}).json["deleted"] == 2
        page.open(f"{server.url}/#/topics/capped")
        page.until(f"{ENTRIES}?.length > 20")
        page.write(".jump", "1")
        page.click("button", "Show")
        page.until_text("are gone: evicted by a cap", "ev-records")
        page.until_text("seq 51: 1 deleted", "ev-records")
        keep_picture(page, "gaps", tmp_path)


def test_hostile_records_are_only_text(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.append(
            "hostile", [{"data": HOSTILE, "tag": "<b>bold</b>", "node": "<i>"}, {"data": HOSTILE["html"]}]
        )
        page.open(f"{server.url}/#/topics/hostile")
        page.until(f"{ENTRIES}?.length === 2")
        page.evaluate("document.querySelector('ev-records ev-rows .scroller').focus()")
        page.press("Home")
        page.press("Enter")
        page.until_text("Record 1", ".detail")
        page.until_text("<img src=x", ".detail")
        page.until_text("18446744073709551615", ".detail")  # all digits
        page.until_text("show all 300,000 characters", ".detail")
        shown = page.text(".detail")
        assert "\u202e" not in shown and "\\u202e" in shown
        page.click(".detail summary", "many")
        page.until_text("4,900 more", ".detail")
        page.click(".detail .more", "4,900 more")
        page.until_text("4,800 more", ".detail")
        assert page.evaluate("document.title").startswith("Topics")
        assert (
            page.evaluate("document.querySelectorAll('ev-topic img, ev-topic script, ev-topic b').length")
            == 0
        )
        assert page.evaluate("({}).polluted") is None


def test_settings_say_what_a_change_means_before_it_is_made(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.append("orders", [order(n) for n in range(100)])
        page.open(f"{server.url}/#/topics/orders/settings")
        page.until_text("Records at most")
        page.write("#field-cap_records", "40")
        page.until_text("The oldest 60 records are evicted at once", ".means")
        keep_picture(page, "settings", tmp_path)
        page.click("button", "Save")
        page.click("dialog button", "Cancel")
        assert client.ask("GET", "/topics/orders").json["count"] == 100
        page.click("button", "Save")
        page.click("dialog button", "Change")
        page.until_text("The settings are changed")
        assert client.ask("GET", "/topics/orders").json["count"] == 40
        page.write("#field-cap_records", "many")
        page.click("button", "Save")
        page.until("document.querySelector('.form .problem').innerText.length > 5")


def test_a_record_is_appended_by_hand_with_all_its_digits(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.append("orders", [order(0)])
        page.open(f"{server.url}/#/topics/orders/append")
        page.write("#append-data", '{"id": 18446744073709551615, "text": "<b>"}')
        page.write("#append-tag", "by-hand")
        page.click("button", "Append")
        page.until_text("Appended as seq 2")
        record = client.diff("orders", 1, include_tags=True).json["records"][0]
        assert (record["data"], record["$tag"]) == ({"id": 18446744073709551615, "text": "<b>"}, "by-hand")
        page.write("#append-data", "{broken")
        page.click("button", "Append")
        page.until_text("Data is not JSON", ".problem")


def test_records_are_deleted_only_after_a_preview_and_a_question(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.append("orders", [order(n, "eu" if n % 2 else "us") for n in range(20)])
        page.open(f"{server.url}/#/topics/orders/delete")
        page.write("#delete-tag", "u*")
        page.write("#delete-before", "11")
        page.click("button", "Preview")
        page.until_text("5 records would be deleted")
        assert client.ask("GET", "/topics/orders").json["count"] == 20
        page.click("button.danger", "Delete 5 records")
        page.click("dialog button", "Delete")
        page.until_text("5 records deleted")
        assert client.ask("GET", "/topics/orders").json["count"] == 15
        page.click("button.danger", "Delete the topic")
        page.click("dialog button", "Delete the topic")
        page.until("location.hash === '#/topics'")
        assert client.ask("GET", "/topics/orders").status == 404
        page.evaluate("location.hash = '#/topics/orders'")
        page.until_text("There is no such topic")


def test_a_tail_goes_on_after_a_restart_and_misses_nothing(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.append("orders", [order(n) for n in range(5)])
        page.open(f"{server.url}/#/topics/orders")
        page.until(f"{ENTRIES}?.length === 5")
        port = server.port
        server.stop_cleanly()
        page.until_text("No answer from", ".banner")
        with running_server(tmp_path, port=port) as again, PlainClient(again.url) as writer:
            writer.append("orders", [order(n) for n in range(5, 9)])
            page.until(f"{ENTRIES}.at(-1)?.$seq >= 9")
            kept = page.evaluate(f"{ENTRIES}.filter((each) => each.$seq).map((each) => each.$seq)")
            assert kept == sorted(set(kept)) and len(kept) == 9
            page.until("document.querySelector('.banner').hidden")
