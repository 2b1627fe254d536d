"""A real Chromium without a window, steered by its DevTools protocol over a pair of pipes."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's package chromium")

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--disable-breakpad", "--mute-audio", "--remote-debugging-pipe"),
)
# It reads commands from descriptor 3, and writes to 4.
_EXEC = "import os, sys; a = sys.argv; [os.dup2(int(a[i]), 2 + i) for i in (1, 2)]; "
_EXEC += "os.execv(a[3], a[3:])"
_ANSWER_S = 120.0
_END_S = 20.0


class Browser:
    """One tab of a browser. One thread uses it."""

    def __init__(self, write: int, read: int) -> None:
        self._to = os.fdopen(write, "wb", buffering=0)
        self._from = os.fdopen(read, "rb")
        self._numbers = itertools.count(1)
        self._replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []
        """Everything that it told without being asked."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def open_tab(self) -> None:
        """Make the tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": found["sessionId"]}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Let the browser do something, and return what it answers."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **self._session}
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            reply = self._replies.get(timeout=_ANSWER_S)
            if reply["id"] == number:
                assert "error" not in reply, (method, reply["error"])
                found: dict[str, Any] = reply["result"]
                return found

    def run(self, script: str) -> Any:
        """Return what JavaScript gives, after waiting for a promise."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, (script, found)
        return found["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until JavaScript gives what is true."""
        text = "document.body && document.body.innerText"
        until(lambda: self.run(script), lambda: (script, self.run(text)), every_s=0.05)

    def open(self, link: str) -> None:
        """Go to a page; returns before it is loaded."""
        self.call("Page.navigate", url=link)

    def screenshot(self, path: Path) -> None:
        """Write what is seen, as PNG."""
        found = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    def urls(self) -> list[str]:
        """Return everything that it asked for."""
        return [
            one["params"]["request"]["url"]
            for one in list(self.events)
            if one["method"] == "Network.requestWillBeSent"
        ]

    def troubles(self) -> list[dict[str, Any]]:
        """Return errors of scripts and of the policy, and dialogs, which no page may open."""
        bad = ("Runtime.exceptionThrown", "Page.javascriptDialogOpening")
        return [
            one
            for one in list(self.events)
            if one["method"] in bad
            or (
                one["method"] == "Log.entryAdded" and one["params"]["entry"]["source"] == "security"
            )
        ]

    def close(self) -> None:
        """Close the pipes; the process has ended."""
        self._to.close()
        self._reader.join(_END_S)
        self._from.close()

    def _read(self) -> None:
        data = b""
        while part := self._from.read1(1 << 16):
            *whole, data = (data + part).split(b"\0")
            for message in map(json.loads, whole):
                if "id" in message:
                    self._replies.put(message)
                else:
                    self.events.append(message)


@contextmanager
def chromium(*, width: int = 1200, height: int = 800) -> Iterator[Browser]:
    """Run a browser with a profile of its own; nothing of it is left."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="hf", dir="/tmp", ignore_cleanup_errors=True) as home:
        read_commands, write_commands = os.pipe()
        read_replies, write_replies = os.pipe()
        # Above the numbers that they get there.
        ends = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (read_commands, write_replies)]
        profile = (f"--user-data-dir={home}/p", f"--window-size={width},{height}", "about:blank")
        process = subprocess.Popen(
            [sys.executable, "-c", _EXEC, *map(str, ends), CHROMIUM, *_FLAGS, *profile],
            pass_fds=ends,
            env={**os.environ, "HOME": home, "TMPDIR": home},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for one in (read_commands, write_replies, *ends):
            os.close(one)
        browser = Browser(write_commands, read_replies)
        try:
            browser.open_tab()
            yield browser
        finally:
            _end(process, browser)


def _end(process: subprocess.Popen[bytes], browser: Browser) -> None:
    """Let it close itself, with all its processes; kill it if that takes too long."""
    try:
        browser._session = {}
        browser.call("Browser.close")
        process.wait(_END_S)
    except (AssertionError, OSError, queue.Empty, subprocess.TimeoutExpired):
        os.killpg(process.pid, 9)
        process.wait(_END_S)
    finally:
        browser.close()
