"""The service as it runs in a cluster: a process of `solver-sched run`, judged by what it answers, logs and leaves."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from tests.controlplane.cluster import Object
from tests.controlplane.controlplane import ROOT, ControlPlane, free_ports

numbers = itertools.count()
COMMAND = [sys.executable, "-m", "solver_sched.cli"]


class Service:
    """A context manager. It is ready when entered; when left it has ended by SIGTERM, with exit code 0, and has logged
    no error that does not begin with one of `expected`.

    `flags` are those of `run`: `scheduler_name=["a", "b"]`, `leader_elect=True`. It ends with the control plane at the
    latest.
    """

    def __init__(self, plane: ControlPlane, kubeconfig: Path, expected: Sequence[str] = (), **flags: Any) -> None:
        self.plane, self.expected = plane, tuple(expected)
        self.name = f"solver-sched-{next(numbers)}"
        self.ports = dict(zip(("listen", "healthz", "debug"), free_ports(3), strict=True))
        addresses = {f"{name}-address": f"127.0.0.1:{port}" for name, port in self.ports.items()}
        options = [f"--kubeconfig={kubeconfig}", "--log-format=json"]
        for name, value in (addresses | {name.replace("_", "-"): value for name, value in flags.items()}).items():
            values = value if isinstance(value, list) else [value]
            options += [f"--{name}" if one is True else f"--{name}={one}" for one in values]
        env = os.environ | {"PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1"}
        self.process = plane.start(self.name, [*COMMAND, "run", *options], env=env)

    def __enter__(self) -> Self:
        try:
            self.wait_for(lambda: self.page("healthz", "readyz") == b"ok", 60, "it is ready")
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.name in self.plane.running:
            self.end()

    def end(self, seconds: float = 25) -> float:
        """SIGTERM; seconds until it had ended. Kubernetes would kill it after 30 s."""
        began = time.monotonic()
        code = self.plane.end(self.name, seconds)
        took = time.monotonic() - began
        assert code == 0, f"exit code {code} after {took:.0f} s\n{self.text()[-4000:]}"
        wrong = [line for line in self.log() if line["level"] in ("error", "critical")]
        assert [line for line in wrong if not line["msg"].startswith(self.expected or "\0")] == []
        return took

    # What it says

    def text(self) -> str:
        return self.plane.log(self.name)

    def log(self) -> list[Object]:
        """Every line so far; ValueError if one is no JSON."""
        text = self.text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def said(self, message: str) -> list[Object]:
        """The lines of this message."""
        return [line for line in self.log() if line["msg"].startswith(message)]

    def cycles(self) -> list[Object]:
        return self.said("cycle")

    def page(self, server: str, name: str) -> bytes:
        """The answer of the listen, healthz or debug address; nothing while there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[server]}/{name}", timeout=5) as answer:
                return bytes(answer.read())
        except (OSError, urllib.error.URLError):
            return b""

    def plan(self) -> Object:
        found: Object = json.loads(self.page("debug", "plan"))
        return found

    def metrics(self, name: str) -> dict[str, float]:
        """Labels (as Prometheus writes them, sorted by name) -> value of every sample of this name."""
        found: dict[str, float] = {}
        for line in self.page("listen", "metrics").decode().splitlines():
            left, _, value = line.rpartition(" ")
            if left.partition("{")[0] == name:
                found[left.partition("{")[2].rstrip("}")] = float(value)
        return found

    def wait_for(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Until it is true, asked ten times a second; AssertionError with the end of the log if it does not come."""
        until = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"it ended with {self.process.returncode}\n{self.text()[-4000:]}"
            assert time.monotonic() < until, f"not within {seconds} s: {what}\n{self.text()[-4000:]}"
            time.sleep(0.1)

    def worker(self) -> int | None:
        """The process that solves, if it has been started."""
        done = subprocess.run(
            ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
        ).stdout
        rows = [line.split(maxsplit=2) for line in done.splitlines()]
        found = [int(pid) for pid, parent, what in rows if int(parent) == self.process.pid and "serve(" in what]
        assert len(found) <= 1, found
        return found[0] if found else None
