"""Profiles and the one marker that depends on the machine."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import Phase, settings

# CI must give the same answer twice; at a desk every run tries new examples. Solving makes per-example deadlines noise.
# A failing example is shrunk at a desk; in CI that could take longer than all the rest.
settings.register_profile("ci", derandomize=True, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
settings.register_profile("desk", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `minizinc` is skipped without the reference solver; in CI that is a failure, not a skip."""
    if item.get_closest_marker("minizinc") is None or shutil.which("minizinc"):
        return
    if os.environ.get("CI"):
        pytest.fail("the reference solver `minizinc` is missing; .ci/reference-solver installs it", pytrace=False)
    pytest.skip("the reference solver `minizinc` is not installed (make reference)")
