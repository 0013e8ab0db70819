"""A page of a real browser, driven by the DevTools protocol: look, type, press, measure, take pictures.

Owns the connection to Chromium. Everything that a page complains about (exceptions, errors on its console,
violations of its content security policy) is kept in `complaints`; a test that leaves one behind fails.
"""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.browser.browsers import browsing
from tests.support.processes import PATIENCE_S, eventually

KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), " ": (32, " "), "/": (191, "/")}
ARROWS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "End": 35, "Home": 36}
# A browser says so itself when a server is gone; that is what tests of a restart are about.
NETWORK = "net::ERR_"


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(PATIENCE_S))
            if message.get("id") == self._number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                found = parameters["exceptionDetails"]
                self.complaints.append(found.get("exception", {}).get("description") or found["text"])
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "assert"):
                self.complaints.append(" ".join(str(each.get("value", each)) for each in parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                entry = parameters["entry"]
                if entry["source"] != "network":
                    self.complaints.append(entry["text"])
            case "Audits.issueAdded" if "contentSecurityPolicyIssueDetails" in json.dumps(parameters):
                self.complaints.append(json.dumps(parameters["issue"]))

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, url: str) -> None:
        """Go to an address and wait until the console is there."""
        self.call("Page.navigate", url=url)
        self.until("document.querySelector('everlog-console main') !== null")

    def until(self, expression: str) -> None:
        """Wait until an expression is true; the failure shows what the page says."""
        try:
            eventually(expression, lambda: self._is_true(expression))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()[-2000:]}\n{self.complaints}") from None

    def _is_true(self, expression: str) -> bool:
        answer = self.call("Runtime.evaluate", expression=f"Boolean({expression})", returnByValue=True)
        return answer["result"].get("value") is True

    def text(self, selector: str = "body") -> str:
        """What can be read in the first element of a selector."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def until_text(self, text: str, selector: str = "body") -> None:
        """Wait until a text can be read somewhere in an element."""
        wanted, where = json.dumps(text), json.dumps(selector)
        self.until(f"[...document.querySelectorAll({where})].some((e) => e.innerText.includes({wanted}))")

    def click(self, selector: str, text: str = "") -> None:
        """Click the first visible element of a selector that has a text."""
        found = f"""[...document.querySelectorAll({json.dumps(selector)})].find((e) =>
            e.checkVisibility() && !e.disabled
            && (e.innerText + (e.getAttribute('aria-label') ?? '')).includes({json.dumps(text)}))"""
        self.until(found)
        place = self.evaluate(
            f"(() => {{const e = {found}; e.scrollIntoView({{block: 'nearest'}});"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
            )

    def write(self, selector: str, text: str) -> None:
        """Replace what is in a field by typing."""
        where = json.dumps(selector)
        self.until(f"document.querySelector({where})")
        self.evaluate(f"(() => {{const e = document.querySelector({where}); e.focus(); e.select?.()}})()")
        self.type(text)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, times: int = 1) -> None:
        """Press a key."""
        if key in ARROWS:
            code, text = ARROWS[key], ""
        else:
            code, text = KEYS[key] if key in KEYS else (ord(key.upper()), key)
        more = {"text": text} if text else {}
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **more)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def size(self, width: int, height: int, scale: float = 1) -> None:
        """Give the page another size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )

    def prefer(self, theme: str) -> None:
        """What the system says about light and dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def picture(self, path: Path) -> None:
        """Save what the page looks like."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def unnamed(self) -> list[str]:
        """Controls and pictures without a name for those who do not see them."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        roles = (
            "button",
            "link",
            "textbox",
            "searchbox",
            "checkbox",
            "combobox",
            "image",
            "spinbutton",
            "table",
        )
        return [
            json.dumps(node)
            for node in nodes
            if not node["ignored"]
            and node["role"]["value"] in roles
            and not node.get("name", {}).get("value", "").strip()
        ]


@contextmanager
def opened_page(program: str, profile: Path) -> Iterator[Page]:
    """A browser with an empty page; at the end it must have had nothing to complain about."""
    with browsing(program, "about:blank", profile, "--remote-debugging-port=0"):
        announced = profile / "DevToolsActivePort"
        eventually(
            "the browser listens", lambda: announced.exists() and announced.read_text().count("\n") > 0
        )
        port = int(announced.read_text().split("\n")[0])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=PATIENCE_S) as answer:
            target = next(each for each in json.load(answer) if each["type"] == "page")
        # No proxy of the environment: the browser is on this machine.
        with connect(target["webSocketDebuggerUrl"], max_size=None, proxy=None) as socket:
            page = Page(socket)
            page.size(1280, 900)
            yield page
            page.call(
                "Runtime.evaluate", expression="0"
            )  # what was said meanwhile is heard before the answer
            assert page.complaints == []
