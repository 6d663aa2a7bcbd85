"""Headless Chromium, driven through pipes: pages are opened, clicked and asked as by a reader."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-default-browser-check",
    "--remote-debugging-pipe",
)


class Browser:
    """One tab; ``said`` has what pages wrote to the console and what their policy blocked."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = os.fdopen(commands, "wb"), os.fdopen(answers, "rb")
        self._number, self._rest, self._session = 0, b"", ""
        self.said: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, page: Path, width: int = 1280, height: int = 900) -> None:
        """Open a file and wait until all of it has been loaded."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self._call("Page.navigate", url=page.resolve().as_uri())
        self._until("Page.loadEventFired")

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript on the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def close(self) -> None:
        self._session = ""
        self._call("Browser.close")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        number = self._number
        while True:
            got = self._next()
            if got.get("id") == number:
                assert "error" not in got, got
                return got["result"]

    def _until(self, event: str) -> None:
        while self._next().get("method") != event:
            pass

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = self._answers.read1()
            assert part, "the browser ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        got = json.loads(text)
        if got.get("method") in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.said.append(json.dumps(got["params"]))
        return got


@contextmanager
def browser() -> Iterator[Browser]:
    """A running browser with an empty profile."""
    assert CHROMIUM
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        options = [*OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            ["bash", "-c", command, "-", str(theirs_in), str(theirs_out), CHROMIUM, *options],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            opened = Browser(ours_out, ours_in)
            yield opened
            opened.close()
        finally:
            process.terminate()
            process.wait()
