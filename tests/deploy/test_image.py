"""What can be said of the image without building it."""

from __future__ import annotations

import re
import shlex

from tests.controlplane.fixtures import require
from tests.deploy.rendered import DEPLOY, NAME, kustomized, objects, one

CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
LINES = [line for line in CONTAINERFILE.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]


def test_everything_that_pip_takes_is_fixed_by_a_hash_or_our_own() -> None:
    installs = [part for line in LINES if line.startswith("RUN") for part in line.split("&&") if " install " in part]
    assert len(installs) == 3
    for install in installs:
        words = shlex.split(install)
        assert "--require-hashes" in words or {"--no-index", "--no-deps"} <= set(words), install
    # Whose index it is, is the builder's business.
    assert not re.search(r"https?://|--index-url|--extra-index-url|--find-links", CONTAINERFILE)


def test_the_lock_files_have_hashes() -> None:
    for name in ("requirements.lock", "requirements-dev.lock"):
        text = (DEPLOY.parent / name).read_text().replace("\\\n", " ")
        pinned = [line for line in text.splitlines() if re.match(r"[a-z0-9._-]+==", line, re.IGNORECASE)]
        assert pinned
        assert all("--hash=sha256:" in line for line in pinned), name


def test_the_user_is_the_number_that_the_pods_run_as() -> None:
    require("kubectl")
    security = one(objects(kustomized("base")), "Deployment", NAME)["spec"]["template"]["spec"]["securityContext"]
    (user,) = (line.split()[1] for line in LINES if line.startswith("USER"))
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert security["runAsUser"] > 0


def test_every_file_that_is_copied_gets_past_the_ignore_file() -> None:
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        word for line in LINES if line.startswith("COPY") and "--from" not in line for word in shlex.split(line)[1:-1]
    }
    assert copied == let_in
    assert all((DEPLOY.parent / path).exists() for path in copied)
