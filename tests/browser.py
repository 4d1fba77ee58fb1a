"""Drives a headless Chromium over its debugging pipe: no port, no driver, no package."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
MISSING = "no Chromium is installed, so the page is not driven"
_PATIENCE = 60.0

# The contrast of every text against what is painted behind it (WCAG 2.1, 1.4.3); yields the worst offenders.
CONTRAST = """(() => {
  const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1});
  const context = canvas.getContext('2d', {willReadFrequently: true});
  const rgba = (text) => { context.clearRect(0, 0, 1, 1); context.fillStyle = text; context.fillRect(0, 0, 1, 1);
    const d = context.getImageData(0, 0, 1, 1).data; return [d[0], d[1], d[2], d[3] / 255]; };
  const light = ([r, g, b]) => { const [x, y, z] = [r, g, b].map((v) => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * x + 0.7152 * y + 0.0722 * z; };
  const bad = [];
  for (const e of document.querySelectorAll('main *, nav *, footer *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest('svg')) continue;
    let behind = e, ground = null;
    while (behind && !ground) {
      const c = rgba(getComputedStyle(behind).backgroundColor);
      if (c[3] > 0.5) ground = c;
      behind = behind.parentElement;
    }
    const style = getComputedStyle(e), [a, b] = [light(rgba(style.color)), light(ground || [255, 255, 255])];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.6 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) bad.push(`${e.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return bad.slice(0, 5);
})()"""

NAMELESS = """[...document.querySelectorAll(
  'a, button, summary, img, svg[role=img], [role=region], [tabindex="0"]')].filter((e) =>
    !['aria-label', 'alt', 'title'].some((name) => e.getAttribute(name)) && !e.textContent.trim())
  .map((e) => e.outerHTML.slice(0, 80))"""


class NavigatedError(AssertionError):
    """The page went elsewhere while it was asked something."""


class Page:
    """One open page, with what it logged and every request it made."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._buffer, self._number = read, write, b"", 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.problems: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, path: Path | str, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Show a file, or an address, at a size, and wait until it has loaded."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        url = path if isinstance(path, str) else path.resolve().as_uri()
        self._call("Page.navigate", url=url)
        self.wait(f"document.readyState === 'complete' && location.protocol === '{url.partition(':')[0]}:'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"])
        return result["result"].get("value")

    def press(self, key: str) -> None:
        """A key on whatever has the focus."""
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def wait(self, condition: str) -> None:
        """Until an expression is true in the page."""
        patience = time.monotonic() + _PATIENCE
        while not self._holds(condition):
            assert time.monotonic() < patience, condition
            time.sleep(0.02)

    def _holds(self, condition: str) -> bool:
        try:
            return bool(self.run(condition))
        except NavigatedError:  # to the page that is waited for, perhaps
            return False

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "navigated" in answer.get("error", {}).get("message", ""):
                    raise NavigatedError(answer)
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._read, 1 << 20)
            assert read, "the browser went away"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def page(profile: Path) -> Iterator[Page]:
    """A fresh browser with an empty profile and no network worth the name."""
    assert CHROMIUM is not None
    its_in, our_out = os.pipe()
    our_in, its_out = os.pipe()
    words = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
        "--proxy-server=127.0.0.1:9", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    high_in, high_out = (fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in (its_in, its_out))

    def connect() -> None:
        """The browser reads commands from 3 and answers on 4."""
        os.dup2(high_in, 3)
        os.dup2(high_out, 4)

    process = subprocess.Popen(
        words,
        preexec_fn=connect,
        pass_fds=(3, 4),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for fd in (its_in, its_out, high_in, high_out):
        os.close(fd)
    try:
        yield Page(our_in, our_out)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(our_in)
        os.close(our_out)
