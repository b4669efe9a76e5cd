"""The service, started for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.controlplane import ControlPlane
from tests.service.service import Service


@pytest.fixture
def service() -> Iterator[Callable[..., Service]]:
    """Start one on a control plane, as its administrator or with another kubeconfig; the rest as Service has it."""
    with ExitStack() as stack:

        def start(plane: ControlPlane, kubeconfig: Path | None = None, **flags: Any) -> Service:
            return stack.enter_context(Service(plane, kubeconfig or plane.kubeconfig, **flags))

        yield start
