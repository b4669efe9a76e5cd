"""Kustomize and Helm give the same objects, of which those that must agree with each other and with the program do."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from solver_sched import load_policy
from tests.controlplane import binaries
from tests.controlplane.fixtures import require
from tests.deploy.rendered import CHART, DEPLOY, KUBERNETES, NAME, kustomized, objects, one, read, templated

ROOT = DEPLOY.parent
OVERLAYS = {
    "base": (),
    "overlays/dev": ("-f", str(CHART / "values-dev.yaml")),
    "overlays/ha": ("-f", str(CHART / "values-ha.yaml")),
}
EVERYTHING = ("serviceMonitor", "prometheusRule", "dashboard")


@pytest.fixture(autouse=True)
def programs() -> None:
    require("kubectl", "helm")


def indexed(found: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """(kind, name) -> object; the policy and the dashboard as values, for their layout may differ."""
    for o in found:
        if o["kind"] == "ConfigMap":
            o["data"] = {name: yaml.safe_load(text) for name, text in o["data"].items()}
    return {(o["kind"], o["metadata"]["name"]): o for o in found}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_helm_gives_the_objects_of_the_overlay(overlay: str) -> None:
    by_kustomize, by_helm = indexed(objects(kustomized(overlay))), indexed(objects(templated(*OVERLAYS[overlay])))
    # A chart is installed into a namespace that is there.
    assert by_kustomize.pop(("Namespace", "solver-sched"))
    if overlay == "overlays/dev":
        # More flags stand at the end of the command line; their order means nothing.
        for found in (by_kustomize, by_helm):
            found["Deployment", NAME]["spec"]["template"]["spec"]["containers"][0]["args"].sort()
    assert by_helm == by_kustomize


def test_helm_gives_the_objects_of_the_monitoring_component(tmp_path: Path) -> None:
    # kustomize takes no absolute path, but a relative one that leaves the folder.
    up = "../" * len(tmp_path.parts)
    content = {
        "resources": [f"{up}{DEPLOY.relative_to('/')}/base"],
        "components": [f"{up}{DEPLOY.relative_to('/')}/components/monitoring"],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(content))
    by_kustomize = indexed(objects(kustomized(tmp_path)))
    by_helm = indexed(objects(templated(*(f"--set=monitoring.{part}=true" for part in EVERYTHING))))
    del by_kustomize["Namespace", "solver-sched"]
    assert by_helm == by_kustomize
    assert {kind for kind, _ in by_helm} >= {"ServiceMonitor", "PrometheusRule"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_definition_is_applied_over_one_that_is_there(overlay: str) -> None:
    for found in (objects(kustomized(overlay)), objects(templated(*OVERLAYS[overlay]))):
        assert "CustomResourceDefinition" not in {o["kind"] for o in found}


def test_two_releases_share_no_name_and_no_pod() -> None:
    first, second = (objects(templated(name=name)) for name in ("one", "two"))
    assert not {(o["kind"], o["metadata"]["name"]) for o in first} & {
        (o["kind"], o["metadata"]["name"]) for o in second
    }
    selectors = [
        one(found, "Deployment", name)["spec"]["selector"] for found, name in ((first, "one"), (second, "two"))
    ]
    assert selectors[0] != selectors[1]
    leases = [one(found, "Role", f"{name}-lease")["rules"][1] for found, name in ((first, "one"), (second, "two"))]
    assert [rule["resourceNames"] for rule in leases] == [["one"], ["two"]]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("replica=3", "replica"),  # a misspelt name
        ("replicas=-1", "replicas"),
        ("log.format=xml", "format"),
        ("schedulerNames={default-scheduler}", "schedulerNames"),  # it would fight with kube-scheduler
        ("image.digest=latest", "digest"),
        ("networkPolicy.apiServerPorts={0}", "apiServerPorts"),
    ],
)
def test_values_that_mean_nothing_are_refused(setting: str, says: str) -> None:
    command = [str(binaries.binary("helm")), "template", NAME, str(CHART), KUBERNETES, "--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert says in done.stderr


def test_helm_lint_has_nothing_to_say() -> None:
    done = subprocess.run(
        [str(binaries.binary("helm")), "lint", "--strict", KUBERNETES, str(CHART)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_policy_of_ones_own_is_what_the_pods_read(tmp_path: Path) -> None:
    policy = ROOT / "models" / "policies" / "preempting.yaml"
    found = one(objects(templated(f"--set-file=policy={policy}")), "ConfigMap", "solver-sched-policy")
    assert found["data"]["policy.yaml"] == policy.read_text()


def test_the_policy_is_the_shipped_default() -> None:
    assert (DEPLOY / "base" / "policy.yaml").read_bytes() == (
        ROOT / "models" / "policies" / "default.yaml"
    ).read_bytes()
    assert not load_policy(DEPLOY / "base" / "policy.yaml").warnings


def test_the_version_is_the_same_everywhere() -> None:
    line = next(line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version"))
    version = json.loads(line.partition("=")[2])
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == version
    assert read("base/kustomization.yaml")[0]["images"] == [{"name": "solver-sched", "newTag": version}]
    assert f"ARG VERSION={version}" in (DEPLOY / "Containerfile").read_text()


def test_the_lease_that_is_taken_is_the_one_that_is_granted() -> None:
    found = objects(kustomized("base"))
    (granted,) = one(found, "Role", "solver-sched-lease")["rules"][1]["resourceNames"]
    args = one(found, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"--leader-elect-resource-name={granted}" in args


def test_the_policy_is_mounted_so_that_it_is_renewed() -> None:
    spec = one(objects(kustomized("base")), "Deployment")["spec"]["template"]["spec"]
    (mount,) = (m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "policy")
    # The kubelet never renews what is mounted by subPath.
    assert mount == {"name": "policy", "mountPath": "/etc/solver-sched", "readOnly": True}
    assert "--scheduler-conf=/etc/solver-sched/policy.yaml" in spec["containers"][0]["args"]
