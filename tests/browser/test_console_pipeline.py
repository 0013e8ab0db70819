"""The page of the lake in a real browser: tables, how far archives are, what audits found."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from everlog.lake_reports import write_report
from tests.browser.devtools import Page
from tests.browser.test_console_shell import keep_picture, shown_width
from tests.server.test_lake_routes import AUDIT, PROGRESS, STREAM, make_lake
from tests.support.server_processes import running_server

pytestmark = pytest.mark.browser


def test_tables_show_their_archive_and_audit_and_follow_them(page: Page, tmp_path: Path) -> None:
    lake = make_lake(tmp_path / "lake")
    now_ms = int(time.time() * 1000)
    running = msgspec.structs.replace(PROGRESS, updated_ms=now_ms, is_running=True)
    write_report(str(lake), "records", running)
    with running_server(tmp_path, "--lake", lake) as server:
        page.open(f"{server.url}/#/pipeline")
        page.until_text("running", "ev-rows")
        page.until_text("sound", "ev-rows")
        page.until_text("no report", "ev-rows")
        page.click("ev-rows .row", "records")
        page.until_text("every seq is accounted for", ".detail")
        page.until_text("800 rows/s", ".detail")
        page.until_text("orders.eu", ".detail table")
        page.evaluate("document.querySelector('.page-head .mono').textContent = 'lake'")
        keep_picture(page, "pipeline", tmp_path)
        faulty = msgspec.structs.replace(STREAM, name="<script>", missing=3, is_sound=False)
        audit = msgspec.structs.replace(AUDIT, is_sound=False, streams=[faulty])
        write_report(str(lake), "records", audit)
        silent = msgspec.structs.replace(running, updated_ms=now_ms - 3_600_000)
        write_report(str(lake), "records", silent)
        page.until_text("3 missing", ".detail table")
        page.until_text("silent", "ev-rows")
        assert "<script>" in page.text(".detail table")
        assert page.unnamed() == []
        page.size(390, 844)
        width, content = shown_width(page)
        assert content <= width
        page.click("button", "Close the table")
        page.until("document.querySelector('.detail').hidden")


def test_a_server_without_a_lake_says_how_to_name_one(page: Page, tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        page.open(f"{server.url}/#/pipeline")
        page.until_text("everlog serve --lake")
