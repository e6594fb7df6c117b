"""Headless Chromium, controlled through pipes by the DevTools protocol: screenshots, console messages."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any


class Browser:
    """A page in headless Chromium; `errors` collects exceptions, messages of the console and requests."""

    def __init__(self, profile: Path) -> None:
        read, self._commands = os.pipe()
        self._answers, write = os.pipe()
        # Chromium reads commands from descriptor 3 and writes to 4, which may be descriptors of these pipes.
        command_read, answer_write = (fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (read, write))
        options = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            "--disable-dev-shm-usage", f"--user-data-dir={profile}", "--remote-debugging-pipe",
        ]  # fmt: skip
        redirected = f'exec chromium "$@" 3<&{command_read} 4>&{answer_write}'
        words = ["bash", "-c", redirected, "bash", *options]
        self._process = subprocess.Popen(
            words, pass_fds=[command_read, answer_write], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        for one in (read, write, command_read, answer_write):
            os.close(one)
        self._buffer, self._count, self._session = b"", 0, ""
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._commands)
        self._process.terminate()
        self._process.wait(30)
        os.close(self._answers)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a method of the protocol."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            received = os.read(self._answers, 1 << 20)
            assert received, "Chromium ended"
            self._buffer += received
        text, self._buffer = self._buffer.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(text)
        match answer.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(answer["params"]["exceptionDetails"])[:400])
            case "Runtime.consoleAPICalled" if answer["params"]["type"] in ("error", "warning"):
                self.errors.append(json.dumps(answer["params"]["args"])[:400])
            case "Log.entryAdded" if answer["params"]["entry"]["level"] == "error":
                self.errors.append(answer["params"]["entry"]["text"])
            case "Network.requestWillBeSent":
                url = answer["params"]["request"]["url"]
                if not url.startswith(("file:", "about:", "data:")):
                    self.errors.append(f"request of {url}")
        return answer

    def open(self, page: Path, width: int, scheme: str = "light", height: int = 900) -> None:
        """Load a file with a window of `width` CSS pixels in a light or dark colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=page.resolve().as_uri())
        while self.value("document.readyState") != "complete" or self.value("location.href") == "about:blank":
            pass

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON has it."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, out: Path, whole: bool = True) -> None:
        """Write a PNG of the whole page, or of the window."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole, format="png",
                         **({"clip": self._whole()} if whole else {}))  # fmt: skip
        out.write_bytes(base64.b64decode(shot["data"]))

    def _whole(self) -> dict[str, float]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6000), "scale": 1}

    def overflowing(self) -> list[str]:
        """Elements beyond the window's right edge that nothing around them clips or scrolls."""
        script = """
        (() => {
          const width = document.documentElement.clientWidth, found = [];
          const clipped = (element) => {
            for (let at = element.parentElement; at; at = at.parentElement) {
              const style = getComputedStyle(at);
              if (at.tagName === "svg" || /(auto|scroll|hidden)/.test(style.overflowX)) return true;
            }
            return false;
          };
          for (const element of document.body.querySelectorAll("*")) {
            const box = element.getBoundingClientRect();
            if (box.width && box.right > width + 1 && !clipped(element))
              found.push(`${element.tagName} ${element.className} ${Math.round(box.right)}`);
          }
          const page = document.documentElement.scrollWidth;
          if (page > width) found.push(`page ${page}`);
          return found;
        })()"""
        elements: list[str] = self.value(script)
        return elements
