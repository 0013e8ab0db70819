"""The accessibility rules of axe-core, run in a page that is open in a browser.

Owns which rules count: those of WCAG 2.1 A and AA and axe's best practices. The engine is a file of a package
of the development environment, so nothing is loaded from elsewhere.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

from tests.browser.devtools import Page

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


@cache
def _engine() -> str:
    return (resources.files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")


def violations(page: Page) -> list[str]:
    """What the rules find wrong: rule, place and what to do, one line each."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(f"{_engine()};0")
    options = json.dumps({"runOnly": {"type": "tag", "values": TAGS}, "resultTypes": ["violations"]})
    found = page.evaluate(
        f"""axe.run(document, {options}).then(({{violations}}) => violations.flatMap((rule) => rule.nodes.map(
          (node) => rule.id + ' at ' + node.target.join(' ') + ': '
            + node.failureSummary.replace(/\\s+/g, ' '))))"""
    )
    return list(found)


def open_unguarded(page: Page, url: str) -> None:
    """Go to an address with the policy of the page off, which would refuse the engine, and wait for it."""
    page.call("Page.setBypassCSP", enabled=True)
    page.call("Page.navigate", url=url)
    page.until("document.readyState === 'complete'")


def scrolls_sideways(page: Page) -> list[str]:
    """What makes a page wider than its window; nothing if it fits."""
    return list(
        page.evaluate(
            """(() => {
              const boxes = [document.documentElement, document.querySelector('main')].filter(Boolean);
              const box = boxes.find((e) => e.scrollWidth > e.clientWidth);
              if (!box) return [];
              const width = box.getBoundingClientRect().left + box.clientWidth;
              const wide = [...box.querySelectorAll('*')].filter((e) => {
                if (e.getBoundingClientRect().right <= width + 1) return false;
                for (let p = e.parentElement; p && p !== box; p = p.parentElement)
                  if (getComputedStyle(p).overflowX !== 'visible') return false;
                return true;
              });
              return [`${box.scrollWidth} px`, ...wide.slice(0, 5).map(
                (e) => `${e.outerHTML.slice(0, 60)}: ${e.textContent.trim().slice(0, 60)}`)];
            })()"""
        )
    )
