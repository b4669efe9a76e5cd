"""The service behind a proxy that fails, and killed: a few of the runs of `benchmarks.faults`, which has 200."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import faults
from tests.controlplane.controlplane import ControlPlane


@pytest.mark.parametrize("seed", [10, 24])
def test_every_gang_comes_out_whole(control_plane: ControlPlane, tmp_path: Path, seed: int) -> None:
    """10: conflicts, torn watches, evictions. 24: every fault at a low rate, watches cut every second, a kill."""
    outcome = faults.run(control_plane, seed, tmp_path)
    assert outcome.findings == [], f"logs: {tmp_path}"
    assert outcome.binds > 0
    assert sum(outcome.faults.values()) > 0
