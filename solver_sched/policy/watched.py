"""A policy file that may change while it is in use: a ConfigMap that is mounted, a file that is edited."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from solver_sched.errors import SchedError
from solver_sched.policy.reader import load_policy

_log = logging.getLogger(__name__)


class WatchedPolicy:
    """`name`: a shipped policy or a file, None = the default. Raises InputError or ConfigError where it cannot be used
    to begin with; later on a bad one is refused and the old one kept. `told`: whether a changed one was taken.
    """

    def __init__(self, name: str | None, told: Callable[[bool], None] = lambda _: None) -> None:
        self._name, self._told = name, told
        self._text = self._read()
        self.policy = load_policy(name)
        for warning in self.policy.warnings:
            _log.warning("policy %s: %s", self._name or "default", warning)

    def refresh(self) -> bool:
        """Read the file again if it has changed; whether another policy is in use now."""
        text = self._read()
        if text == self._text or text is None:
            return False
        self._text = text
        try:
            policy = load_policy(self._name)
        except SchedError as wrong:
            _log.error("the changed policy is refused, the old one stays in use: %s", wrong)
            self._told(False)
            return False
        self.policy = policy
        _log.info("the changed policy is in use")
        self._told(True)
        return True

    def _read(self) -> bytes | None:
        """The text, not its time: a mounted ConfigMap changes by a link, and an editor may write the same again."""
        path = Path(self._name) if self._name else None
        try:
            return path.read_bytes() if path is not None and path.is_file() else None
        except OSError:
            return None
