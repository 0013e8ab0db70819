"""Fixtures of all tests that need a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.browsers import find_browser
from tests.browser.devtools import Page, opened_page


@pytest.fixture(scope="session")
def browser() -> str:
    """The program; without one the test is skipped and says what is missing."""
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium is installed; on Debian the package is called chromium")
    return program


@pytest.fixture
def page(browser: str, tmp_path: Path) -> Iterator[Page]:
    """A tab of a new browser. The test fails if the page complains: errors, or violations of its policy."""
    with opened_page(browser, tmp_path / "profile") as opened:
        yield opened
