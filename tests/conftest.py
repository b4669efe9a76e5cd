"""Profiles, the markers, and the fixtures of tests on a real control plane."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import Phase, settings

from tests.controlplane.fixtures import cluster, control_plane, namespace, start_control_plane

__all__ = ["cluster", "control_plane", "namespace", "start_control_plane"]

# CI must give the same answer twice; at a desk every run tries new examples. Solving makes per-example deadlines noise.
# A failing example is shrunk at a desk; in CI that could take longer than all the rest.
settings.register_profile("ci", derandomize=True, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
settings.register_profile("desk", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that starts a control plane, or uses one, is a `cluster` test."""
    for item in items:
        if {"control_plane", "start_control_plane"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("cluster")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `minizinc` is skipped without the reference solver; in CI that is a failure, not a skip."""
    if item.get_closest_marker("minizinc") is None or shutil.which("minizinc"):
        return
    if os.environ.get("CI"):
        pytest.fail("the reference solver `minizinc` is missing; .ci/reference-solver installs it", pytrace=False)
    pytest.skip("the reference solver `minizinc` is not installed (make reference)")
