"""Volumes: where a pod's claims can be reached, how many volumes a node attaches, and claims that must not be shared.

VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits of kube-scheduler, which counts claims only: inline
CSI volumes are no attachments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from solver_sched.cluster.objects import NodeTerm, Pod, VolumeClaim
from solver_sched.snapshot import Snapshot

ATTACH_PREFIX = "attachable-volumes-csi-"
ONE_POD = "ReadWriteOncePod"
SHARED_MODES = ("ReadWriteMany", "ReadOnlyMany")


class VolumeNeeds(NamedTuple):
    """What a pod's volumes ask of its node.

    `reach`: per claim, terms of which one must match the node. `attached`: (driver, volumes), sorted.
    `single`: claims that one pod in the cluster may use. `together`: unbound claims whose users must share a node.
    """

    reach: tuple[tuple[NodeTerm, ...], ...] = ()
    attached: tuple[tuple[str, int], ...] = ()
    single: tuple[str, ...] = ()
    together: tuple[str, ...] = ()


NO_VOLUMES = VolumeNeeds()


class Volumes:
    """The claims of a snapshot. `used_by_pending` counts how many pending pods name each claim ("namespace/name")."""

    def __init__(self, snapshot: Snapshot, pending: Iterable[Pod]) -> None:
        self._claims = {(claim.namespace, claim.name): claim for claim in snapshot.claims}
        self._users = Counter(
            (pod.namespace, name) for pod in pending if pod.needs.volume_claims for name in set(pod.needs.volume_claims)
        )

    def needs(self, pod: Pod) -> VolumeNeeds | str:
        """What the volumes ask, or a sentence why the pod must wait: a claim that is missing, broken or not bound."""
        if not pod.needs.volume_claims:
            return NO_VOLUMES
        claims = []
        for name in sorted(set(pod.needs.volume_claims)):
            claim = self._claims.get((pod.namespace, name))
            if claim is None:
                return f"claim {pod.namespace}/{name} does not exist"
            if claim.missing:
                return f"claim {pod.namespace}/{name}: {claim.missing}"
            if claim.volume is None and not claim.wait:
                return f"claim {pod.namespace}/{name} is not bound, and its class binds before a pod is placed"
            claims.append(claim)
        attached = Counter(claim.driver for claim in claims if claim.driver)
        return VolumeNeeds(
            reach=tuple(dict.fromkeys(claim.nodes for claim in claims if claim.nodes is not None)),
            attached=tuple(sorted(attached.items())),
            single=tuple(_key(claim) for claim in claims if ONE_POD in claim.access_modes),
            together=tuple(_key(claim) for claim in claims if self._binds_with_others(claim)),
        )

    def on_node(self, pod: Pod) -> set[tuple[str, str]]:
        """(driver, volume) that a running pod keeps attached; one volume of several pods counts once per node."""
        held = set()
        for name in pod.needs.volume_claims:
            claim = self._claims.get((pod.namespace, name))
            if claim is not None and claim.driver:
                held.add((claim.driver, claim.volume or _key(claim)))
        return held

    def _binds_with_others(self, claim: VolumeClaim) -> bool:
        """The first pod's node decides where the volume comes to be; the others could then only follow it there."""
        shared = self._users[claim.namespace, claim.name] > 1
        return claim.volume is None and shared and not any(mode in SHARED_MODES for mode in claim.access_modes)


def _key(claim: VolumeClaim) -> str:
    return f"{claim.namespace}/{claim.name}"
