"""Fixtures of tests on a real control plane; a test that uses one of them is marked `cluster` (tests/conftest.py)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import yaml

from tests.controlplane.binaries import MissingError, binary
from tests.controlplane.cluster import Cluster
from tests.controlplane.controlplane import ROOT, ControlPlane

DIALECTS = ("scheduling.sigs.dev/v1alpha2", "scheduling.incubator.k8s.io/v1alpha1", "scheduling.volcano.sh/v1beta1")
numbers = itertools.count()


def require(*programs: str) -> None:
    """Skip where one of the programs is missing; in CI, fail."""
    try:
        for program in programs:
            binary(program)
    except MissingError as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


def install_crds(cluster: Cluster) -> None:
    files = sorted(ROOT.glob("deploy/crds/*.yaml"))
    found = [
        o for file in files for o in yaml.safe_load_all(file.read_text()) if o["kind"] == "CustomResourceDefinition"
    ]
    cluster.apply(*found)
    for crd in found:
        name = crd["metadata"]["name"]
        cluster.wait_for(partial(established, cluster, name), 30, f"{name} is established")
    for crd in found:
        spec = crd["spec"]
        version = f"{spec['group']}/{spec['versions'][0]['name']}"
        cluster.wait_for(partial(listed, cluster, spec["names"]["kind"], version), 30, f"{version} is served")


def listed(cluster: Cluster, kind: str, version: str) -> bool:
    cluster.items(kind, api_version=version)
    return True


def established(cluster: Cluster, crd: str) -> bool:
    status = cluster.get("CustomResourceDefinition", crd, api_version="apiextensions.k8s.io/v1").get("status", {})
    return any(c["type"] == "Established" and c["status"] == "True" for c in status.get("conditions") or [])


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, API server, controllers and kubelets; one for all tests of a worker, started by the first that asks."""
    require("etcd", "kube-apiserver", "kube-controller-manager")
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as running:
        install_crds(running.cluster)
        yield running


@pytest.fixture
def start_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ControlPlane]]:
    """Start one for this test alone, with the arguments of ControlPlane."""
    with ExitStack() as stack:

        def start(**arguments: Any) -> ControlPlane:
            programs = set(arguments.get("components", ["kube-controller-manager"])) - {"kubelet"}
            require("etcd", "kube-apiserver", *sorted(programs))
            running = stack.enter_context(ControlPlane(tmp_path_factory.mktemp("control-plane"), **arguments))
            install_crds(running.cluster)
            return running

        yield start


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[Cluster]:
    """The administrator. Nodes and queues that a test makes are gone after it."""
    cluster = control_plane.cluster
    yield cluster
    cluster.request("DELETE", "/api/v1/nodes")
    for api_version in DIALECTS:
        cluster.request("DELETE", cluster.path("Queue", api_version))


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of its own. Its pods and groups are gone after the test, the rest of it some seconds later."""
    name = f"test-{next(numbers)}"
    cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    cluster.delete("Namespace", name)  # from here on nothing new can be made in it
    cluster.request("DELETE", cluster.path("Pod", namespace=name), query={"gracePeriodSeconds": 0})
    for api_version in DIALECTS:
        cluster.request("DELETE", cluster.path("PodGroup", api_version, name))
