"""A headless Chromium driven over a pipe, by the DevTools protocol and the standard library alone.

It downloads nothing and needs no driver: `chromium --remote-debugging-pipe` reads commands from its file descriptor 3 and answers on 4.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--force-device-scale-factor=1",
    "--font-render-hinting=none", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE_S = 30.0
KEYS = {
    "Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36,
    "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
}  # fmt: skip
"""Virtual key codes."""
BOX = """selector => {
    const element = document.querySelector(selector);
    element.scrollIntoView({block: "center", behavior: "instant"});
    const box = element.getBoundingClientRect();
    return [box.left, box.top, box.width, box.height];
}"""


def installed() -> str | None:
    """Path of a Chromium on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One Chromium with one page."""

    def __init__(self, chromium: str, profile: Path) -> None:
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()

        def wire() -> None:
            # its ends of the pipes may themselves be 3 or 4
            high = [os.dup(commands), os.dup(answers)]
            high = [os.dup2(fd, 100 + place) for place, fd in enumerate(high)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            [chromium, *FLAGS, f"--user-data-dir={profile}"],
            preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self.session = ""
        self.complaints: list[str] = []
        """What the console showed: errors, warnings, violations of the policy, uncaught exceptions."""
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._send({"id": 0, "method": "Browser.close"})
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    # ---- protocol

    def call(self, method: str, **parameters: Any) -> Any:
        """A command's result; events that come before it are noted."""
        self._number += 1
        session = {"sessionId": self.session} if self.session else {}
        self._send({"id": self._number, "method": method, "params": parameters, **session})
        for message in self._messages():
            if message.get("id") == self._number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
        raise AssertionError

    def wait_for(self, event: str) -> None:
        for message in self._messages():
            if message.get("method") == event:
                return

    def _send(self, message: dict[str, Any]) -> None:
        os.write(self._write, json.dumps(message).encode() + b"\0")

    def _messages(self) -> Iterator[dict[str, Any]]:
        until = time.monotonic() + PATIENCE_S
        while True:
            while b"\0" not in self._buffer:
                ready, _, _ = select.select([self._read], [], [], max(until - time.monotonic(), 0))
                chunk = os.read(self._read, 1 << 20) if ready else b""
                assert chunk, f"Chromium said nothing for {PATIENCE_S} s, or ended ({self._process.poll()})"
                self._buffer += chunk
            line, _, self._buffer = self._buffer.partition(b"\0")
            message = json.loads(line)
            self._note(message)
            yield message

    def _note(self, message: dict[str, Any]) -> None:
        method, given = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(given["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(given["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(given["args"]))
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"dialog: {given['message']}")

    # ---- page

    def open(self, path: Path, *, width: int = 1200, height: int = 900, scheme: str = "light", media: str = "") -> None:
        """Load a file, forgetting what came before."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        self.complaints.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """Value of an expression in the page; what it logs is waited for."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str, *, times: int = 1) -> None:
        """A key on the keyboard."""
        code = KEYS.get(key, ord(key[0].upper()))
        typed = {"key": key, "windowsVirtualKeyCode": code, **({"text": key} if len(key) == 1 else {})}
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", **typed)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """left, top, width, height of an element, scrolled into view."""
        left, top, width, height = self.run(f"({BOX})({json.dumps(selector)})")
        return left, top, width, height

    def mouse(self, kind: str, x: float, y: float, *, clicks: int = 1) -> None:
        held = {"button": "left", "buttons": 1, "clickCount": clicks} if kind != "mouseMoved" else {}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **held)

    def click(self, selector: str) -> None:
        left, top, width, height = self.box(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, left + width / 2, top + height / 2)

    def hover(self, selector: str, *, x: float = 0.5, y: float = 0.5) -> None:
        left, top, width, height = self.box(selector)
        self.mouse("mouseMoved", left + x * width, top + y * height)

    def drag(self, selector: str, start: float, end: float) -> None:
        """From one share of an element's width to another."""
        left, top, width, height = self.box(selector)
        y = top + height / 2
        self.mouse("mouseMoved", left + start * width, y)
        self.mouse("mousePressed", left + start * width, y)
        self.mouse("mouseMoved", left + (start + end) / 2 * width, y)
        self.mouse("mouseMoved", left + end * width, y)
        self.mouse("mouseReleased", left + end * width, y)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])
