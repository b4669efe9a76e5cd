"""A real browser without a window, driven over its DevTools protocol: what a page asks for, says, and looks like."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal

import websocket

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 60
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    *("--remote-debugging-port=0", "--remote-allow-origins=*", "about:blank"),
)


def found() -> str | None:
    """The browser of this machine."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


class Tab:
    """One page. `events`: everything that the browser told of it, in order."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=SECONDS)
        self._numbers = count(1)
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            said = json.loads(self._socket.recv())
            if said.get("id") == number:
                assert "error" not in said, said
                return dict(said["result"])
            self.events.append(said)

    def open(self, file: Path, *, width: int, scheme: Literal["light", "dark"], height: int = 900) -> None:
        """Show a file as a window of this width (CSS pixels) does."""
        narrow = width < 700
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=narrow)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media="screen", features=features)
        self.events.clear()
        self.call("Page.navigate", url=file.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(json.loads(self._socket.recv()))

    def print_view(self) -> None:
        """As it would be printed, on the sheet's width in pixels."""
        features = [{"name": "prefers-color-scheme", "value": "dark"}]
        self.call("Emulation.setEmulatedMedia", media="print", features=features)

    def value(self, script: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def requests(self) -> list[str]:
        """Every address that was asked for, that of the page itself included."""
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [str(one["request"]["url"]) for one in sent]

    def complaints(self) -> list[str]:
        """What stands in the console."""
        said = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in said]

    def screenshot(self, file: Path) -> None:
        """The whole page, however long."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def tab(browser: str, folder: Path) -> Iterator[Tab]:
    """A browser with a profile of its own in `folder`, ended afterwards."""
    process = subprocess.Popen(
        [browser, f"--user-data-dir={folder}", *FLAGS], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if line.startswith("DevTools listening on "))
        base = line.split()[-1]
        whole = websocket.create_connection(base, timeout=SECONDS)
        whole.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
        targets = json.loads(whole.recv())["result"]["targetInfos"]
        whole.close()
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        opened = Tab(f"{base.rpartition('/devtools/')[0]}/devtools/page/{page}")
        try:
            yield opened
        finally:
            opened._socket.close()
    finally:
        process.terminate()
        process.communicate()
