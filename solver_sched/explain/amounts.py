"""Resource vectors in the words of kubectl users: `512 nvidia.com/gpu`, `500m cpu`, `4Gi memory`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solver_sched import quantity
from solver_sched.problem.arrays import RESERVED_PREFIX, Bools, Ints


class Amounts:
    """`resources`: the names of the rows. Texts are kept, as the same few amounts come back for many gangs."""

    def __init__(self, resources: Sequence[str]) -> None:
        self.resources = tuple(resources)
        self._plain: dict[tuple[int, int], str] = {}

    def plain(self, r: int, number: int | np.int64) -> str:
        """The quantity without its resource."""
        key = (r, int(number))
        if key not in self._plain:
            self._plain[key] = quantity.format(self.resources[r], key[1])
        return self._plain[key]

    def text(self, r: int, number: int | np.int64) -> str:
        """The quantity and its resource."""
        return f"{self.plain(r, number)} {self.resources[r]}"

    def mapping(self, vector: Ints, present: Bools | None = None) -> dict[str, str]:
        """(R,) as resource -> quantity, where `present`, else where not zero; room that reservations leave is none."""
        rows = np.flatnonzero(vector if present is None else present).tolist()
        real = [r for r in rows if not self.resources[r].startswith(RESERVED_PREFIX)]
        return {self.resources[r]: self.plain(r, vector[r]) for r in real}


def names(listed: Sequence[str], total: int | None = None, shown: int = 3) -> str:
    """`a, b, c and 4 more`; `total` where `listed` is only the first of them."""
    rest = (len(listed) if total is None else total) - shown
    return ", ".join(listed[:shown]) + (f" and {rest} more" if rest > 0 else "")
