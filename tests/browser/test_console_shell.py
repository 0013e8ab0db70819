"""The console as a whole, in a real browser: navigation, keys, themes, widths, a server that goes away.

Pictures for the guide are made here: `EVERLOG_SCREENSHOTS=docs/guide/console pytest tests/browser`.
"""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.browser.devtools import Page
from tests.support.server_clients import PlainClient
from tests.support.server_processes import running_server

pytestmark = pytest.mark.browser
SCREENSHOTS = os.environ.get("EVERLOG_SCREENSHOTS")


def keep_picture(page: Page, name: str, folder: Path) -> None:
    """Save a picture: for the guide if asked, beside the test's files otherwise."""
    page.picture(Path(SCREENSHOTS or folder) / f"{name}.png")


def shown_width(page: Page) -> tuple[int, int]:
    """How wide the page is, and how wide its content."""
    return tuple(page.evaluate("[innerWidth, document.scrollingElement.scrollWidth]"))


def test_the_overview_shows_rates_that_a_reload_keeps(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        page.open(server.url)
        for number in range(300):
            client.append(
                f"orders.{number % 20}", [{"data": {"n": number}}] * 20, config={"durability": "fsync"}
            )
        page.until_text("6,000 since the start", ".tiles")
        # The chart knows of the past: the samples are the server's.
        page.until("document.querySelector('ev-chart').rows.some((row) => row[1] > 0)")
        page.open(f"{server.url}/#/overview")
        page.until("document.querySelector('ev-chart').rows?.some((row) => row[1] > 0)")
        page.until_text("ok", ".cards")
        page.click("button", "1 hour")
        page.until("document.querySelector('.choice [aria-pressed=true]').innerText === '1 hour'")
        page.click("button", "5 min")
        page.until("document.querySelector('ev-chart').rows.length > 1")
        assert "No keys are set" in page.text(".alerts")
        keep_picture(page, "overview", tmp_path)


def test_a_chart_tells_its_values_to_the_keyboard(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        page.open(server.url)
        page.until("document.querySelector('ev-chart').rows?.length > 2")
        page.evaluate("document.querySelector('ev-chart canvas').focus()")
        page.press("ArrowLeft", 2)
        page.until("document.querySelector('ev-chart').cursor !== null")
        assert page.evaluate("document.querySelector('ev-chart canvas').ariaLabel").startswith(
            "Records appended"
        )
        assert page.unnamed() == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_follow_the_system_and_the_button(page: Page, tmp_path: Path, theme: str) -> None:
    with running_server(tmp_path) as server:
        page.prefer(theme)
        page.open(server.url)
        background = "getComputedStyle(document.body).backgroundColor"
        shade = {"light": "rgb(247, 248, 249)", "dark": "rgb(14, 18, 22)"}
        assert page.evaluate(background) == shade[theme]
        for chosen in ("light", "dark"):
            page.click("aside button", "Theme")
            page.until(f"document.documentElement.dataset.theme === '{chosen}'")
            assert page.evaluate(background) == shade[chosen]
        page.open(f"{server.url}/?again")
        assert page.evaluate(background) == shade["dark"]  # a reload keeps the choice


def test_nothing_is_wider_than_a_phone(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        page.size(390, 844)
        page.open(server.url)
        page.until("document.querySelector('ev-chart').rows?.length > 0")
        width, content = shown_width(page)
        assert content <= width
        keep_picture(page, "phone", tmp_path)


def test_pages_open_by_keyboard_alone(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        page.open(server.url)
        page.press("Tab")
        page.until("document.activeElement.className === 'skip'")
        page.press("Enter")
        page.until("document.activeElement.id === 'page'")
        page.press("g")
        page.press("o")
        page.until("location.hash === '#/overview'")
        page.evaluate("location.hash = '#/nowhere'")
        page.until_text("There is no such page")
        page.click("a", "Go to the overview")
        page.until_text("Records / s")


def test_a_key_is_asked_for_kept_in_the_tab_and_asked_for_again_when_it_expires(
    page: Page, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"

    def write_keys(expires: datetime) -> None:
        short = f'name = "short"\nkey = "goes-soon"\nexpires = {expires.isoformat(timespec="seconds")}\n'
        keys.write_text(f'[[key]]\n{short}[[key]]\nname = "long"\nkey = "stays"\n')
        keys.chmod(0o600)

    write_keys(datetime.now(UTC) + timedelta(days=1))
    (tmp_path / "server.toml").write_text(f'api_keys_file = "{keys}"\n')
    with running_server(tmp_path, "--config", tmp_path / "server.toml", key="stays") as server:
        page.open(server.url)
        page.until_text("This server needs a key", "dialog")
        page.write("#key", "wrong")
        page.press("Enter")
        page.until_text("The key was refused", "dialog")
        page.write("#key", "goes-soon")
        page.press("Enter")
        page.until("!document.querySelector('dialog')")
        page.until_text("since the start", ".tiles")
        assert page.evaluate("sessionStorage.getItem('everlog.key')") == "goes-soon"
        assert "goes-soon" not in page.evaluate("JSON.stringify(localStorage)")
        write_keys(datetime.now(UTC) - timedelta(seconds=1))
        server.command.process.send_signal(signal.SIGHUP)
        page.until_text("it has expired", "dialog")
        page.write("#key", "stays")
        page.press("Enter")
        page.until("!document.querySelector('dialog')")
        page.click("button", "Forget the key")
        page.until_text("This server needs a key", "dialog")


def test_a_page_says_that_the_server_is_gone_and_goes_on_when_it_is_back(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server, PlainClient(server.url) as client:
        client.append("orders", [{"data": 1}])
        page.open(server.url)
        page.until_text("1 since the start", ".tiles")
        port = server.port
        server.stop_cleanly()
        page.until_text("No answer from", ".banner")
        with running_server(tmp_path, port=port):
            page.until("document.querySelector('.banner').hidden")
            page.until_text("0 since the start", ".tiles")
            page.until_text("1 record in", ".cards")  # what recovery found


def test_no_text_can_become_markup(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        page.open(server.url)
        refused = page.evaluate(
            "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'markup'; }"
            " catch { return 'refused'; } })()"
        )
        assert refused == "refused"  # no text becomes markup, whatever the code does
        page.call("Runtime.evaluate", expression="0")
        assert any("TrustedHTML" in text or "trusted" in text.lower() for text in page.complaints)
        page.complaints.clear()
