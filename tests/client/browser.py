"""Chromium without a window, driven by its DevTools protocol over a pipe: no port, and no package."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.conftest import chromium

FLAGS = (
    "--headless", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--hide-scrollbars",
    "--force-color-profile=srgb", "--no-proxy-server",
)  # fmt: skip
KEYS = {"Tab": 9, "Enter": 13, " ": 32, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


class Browser:
    """One page. ``requests`` are the addresses it has asked for, ``complaints`` its errors and refusals."""

    def __init__(self, folder: Path) -> None:
        executable = chromium()
        assert executable, "no Chromium here"
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # The protocol is on the descriptors 3 and 4. Root has no sandbox of Chromium.
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        script = f'exec 3<&{commands} 4>&{answers}; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", script, executable, *FLAGS, *root, f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(commands)
        os.close(answers)
        self._number, self._rest, self._session = 0, b"", None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.size(1200, 900)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _next(self) -> Any:
        while b"\0" not in self._rest:
            more = os.read(self._answers, 1 << 20)
            assert more, "chromium has ended"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        told = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        if message.get("method") == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(told["exceptionDetails"]))
        return message

    def size(self, width: int, height: int, phone: bool = False, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )

    def theme(self, name: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, file: Path) -> None:
        self.requests.clear()
        self.complaints.clear()
        self.call("Page.navigate", url=file.resolve().as_uri())
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")
        self.settle()

    def visit(self, address: str) -> None:
        self.requests.clear()
        self.complaints.clear()
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.protocol === 'http:'")
        self.settle()

    def settle(self) -> None:
        """Waits until two frames were drawn."""
        self("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def __call__(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, (expression, found["exceptionDetails"])
        return found["result"].get("value")

    def until(self, expression: str, within: float = 60) -> None:
        deadline = time.monotonic() + within
        while not self(expression):
            assert time.monotonic() < deadline, f"not within {within} s: {expression}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        more = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        code = KEYS.get(key, 0)
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def mouse(self, kind: str, x: float, y: float) -> None:
        """``kind``: mouseMoved, mousePressed or mouseReleased."""
        pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        held = {"buttons": 0 if kind == "mouseReleased" else 1} if pressed else {}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed, **held)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start)
        for part in (0.3, 0.7, 1):
            x, y = (one + (other - one) * part for one, other in zip(start, end))
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
        self.mouse("mouseReleased", *end)
        self.settle()

    def picture(self, file: Path, whole: bool = False) -> None:
        """A screenshot as PNG: of what is seen, or of the whole page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(data))
