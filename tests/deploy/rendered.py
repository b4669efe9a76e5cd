"""The objects of deploy/, as kubectl and Helm render them."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane import binaries

Object = dict[str, Any]

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "chart"
NAME = NAMESPACE = "solver-sched"
# Without a server to ask, Helm has to be told; what `go install` builds would assume 1.20.
KUBERNETES = "--kube-version=1.37.0"


def objects(text: str) -> list[Object]:
    return [found for found in yaml.safe_load_all(text) if found]


def read(path: str) -> list[Object]:
    """The objects of a file below deploy/."""
    return objects((DEPLOY / path).read_text())


@cache
def kustomized(folder: str | Path) -> str:
    """What `kubectl kustomize` prints for a folder, by its path below deploy/ or an absolute one."""
    return _output(binaries.binary("kubectl"), "kustomize", str(DEPLOY / folder))


@cache
def templated(*options: str, name: str = NAME) -> str:
    """What `helm template` prints for the chart."""
    return _output(
        binaries.binary("helm"), "template", name, str(CHART), KUBERNETES, f"--namespace={NAMESPACE}", *options
    )


def key(found: Object) -> tuple[str, str, str]:
    return found["apiVersion"], found["kind"], found["metadata"]["name"]


def one(among: list[Object], kind: str, name: str = NAME) -> Object:
    (found,) = (o for o in among if (o["kind"], o["metadata"]["name"]) == (kind, name))
    return found


def _output(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
