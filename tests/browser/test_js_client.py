"""The JavaScript client in a real browser, on a page of another origin than the server's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.browser.browsers import browsing, find_browser, served_page
from tests.js.node_programs import FOLDER
from tests.js.test_js_client import CASES, CLIENT
from tests.support.server_processes import running_server

pytestmark = pytest.mark.browser

RUNNING = """
(async () => {
  const everlog = await import('/everlog.js');
  const {CASES} = await import('/cases.mjs');
  for (const [name, run] of Object.entries(CASES)) {
    const client = new everlog.Client(SERVER);
    const failure = await run({...everlog, client, topic: name}).then(() => null, (error) => String(error));
    report('case', {name, failure});
  }
  report('end', {});
})();
"""


def test_every_case_of_the_client_holds_in_a_browser(tmp_path: Path) -> None:
    browser = find_browser()
    if browser is None:
        pytest.skip("no Chromium is installed; on Debian the package is called chromium")
    modules = {"/everlog.js": CLIENT / "everlog.js", "/cases.mjs": FOLDER / "cases.mjs"}
    with running_server(tmp_path, "--cors-origin", "*") as server:
        script = RUNNING.replace("SERVER", json.dumps(server.url))
        with (
            served_page(lambda _: script, modules) as (origin, reports),
            browsing(browser, origin, tmp_path / "profile"),
        ):
            reports.until(lambda: bool(reports.of("end")))
    assert {found["name"]: found["failure"] for found in reports.of("case")} == dict.fromkeys(CASES)
    assert reports.of("broken") == []
