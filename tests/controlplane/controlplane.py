"""A real control plane on loopback: etcd, API server and, as asked for, controllers, kubelets and kube-scheduler."""

from __future__ import annotations

import base64
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from ssl import CERT_NONE, create_default_context
from types import TracebackType
from typing import Self

from tests.controlplane import binaries
from tests.controlplane.cluster import Cluster

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# The controllers that batch work meets; all of them together cost twice the memory.
CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "podgroup-protection-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "serviceaccount-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    "ttl-after-finished-controller",
    "validatingadmissionpolicy-status-controller",
)
# ServiceAccount would make each pod wait for the account of its namespace. TaintNodesByCondition would taint each new
# node until the node-lifecycle controller has looked at it, seconds later; our nodes are created Ready.
ADMISSION_OFF = ("ServiceAccount", "TaintNodesByCondition")


def free_ports(count: int) -> list[int]:
    """Ports that are free now, from below the range of outgoing connections (Linux: 32768 and up)."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(20000, 32000), 1000):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free ports on 127.0.0.1")


class ControlPlane:
    """A context manager. Its processes are one group, which ends with it, or with this process if that is killed."""

    def __init__(
        self,
        folder: Path,
        *,
        components: Sequence[str] = ("kube-controller-manager", "kubelet"),
        feature_gates: Mapping[str, bool] | None = None,
        runtime_config: Sequence[str] = ("api/beta=true",),
    ) -> None:
        """`folder` holds data, logs and credentials. `components`, beside etcd and kube-apiserver: any of
        kube-controller-manager, kube-scheduler and kubelet (kubelet.py). `feature_gates` go to all of them.
        """
        self.folder = folder
        self.components = components
        self.gates = ",".join(f"{name}={str(on).lower()}" for name, on in (feature_gates or {}).items())
        self.runtime_config = ",".join(runtime_config)
        self.token = secrets.token_hex(16)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = dict(zip(("api", "etcd", "peer"), free_ports(3), strict=True))
        self.url = f"https://127.0.0.1:{self.ports['api']}"
        self.authority = folder / "certs" / "apiserver.crt"
        self.kubeconfig = folder / "admin.kubeconfig"
        self.cluster: Cluster

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        # `cat` ends when the last writer of its standard input is gone, however that happened. Process groups, not
        # PR_SET_PDEATHSIG: that one is Linux only, and fires when the thread that started a process ends.
        self.watchdog = subprocess.Popen(
            ["/bin/sh", "-c", "cat; kill -KILL 0"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0
        )
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.__exit__()
        self.stop()

    def start(
        self, name: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Run a program that ends with this control plane; its output goes to `folder`/NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=env,
                process_group=self.watchdog.pid,
            )
        return self.running[name]

    def end(self, name: str, seconds: float = 10, how: signal.Signals = signal.SIGTERM) -> int:
        """End one program and give its exit code; SIGKILL if it has not ended `seconds` after `how`."""
        process = self.running.pop(name)
        process.send_signal(how)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def stop(self) -> None:
        """End all programs: nothing that they would write on the way out is needed."""
        assert self.watchdog.stdin is not None
        self.watchdog.stdin.close()
        for process in (*self.running.values(), self.watchdog):
            process.wait(10)
        self.running.clear()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def credentials(self, path: Path, token: str, server: str | None = None) -> Path:
        """A kubeconfig (JSON is YAML) at `path` that shows `token`, to the API server or to `server` in front of it."""
        authority = base64.b64encode(self.authority.read_bytes()).decode()
        cluster = {"server": server} if server else {"server": self.url, "certificate-authority-data": authority}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "local",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "user"}}],
        }
        path.touch(0o600)
        path.write_text(json.dumps(content))
        return path

    def account(self, name: str, namespace: str) -> Cluster:
        """A service account as a user, by a token of its own."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token = self.cluster.request("POST", path, request)["status"]["token"]
        kubeconfig = self.credentials(self.folder / f"{namespace}-{name}.kubeconfig", token)
        return Cluster(self.url, token, kubeconfig, self.authority)

    def _start(self) -> None:
        (self.folder / "tokens.csv").write_text(f'{self.token},admin,admin,"system:masters"\n')
        etcd, peer = (f"http://127.0.0.1:{self.ports[name]}" for name in ("etcd", "peer"))
        gates = [f"--feature-gates={self.gates}"] if self.gates else []
        self.start(
            "etcd",
            [
                binaries.binary("etcd"),
                "--data-dir=etcd",
                "--unsafe-no-fsync",  # nobody needs this data after a power cut
                "--log-level=warn",
                f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
            ],
        )
        self.start(
            "kube-apiserver",
            [
                binaries.binary("kube-apiserver"),
                f"--etcd-servers={etcd}",
                "--bind-address=127.0.0.1",
                f"--secure-port={self.ports['api']}",
                "--cert-dir=certs",
                "--service-account-issuer=https://kubernetes.default.svc",
                # The key that it makes for its certificate signs the tokens of service accounts as well.
                "--service-account-key-file=certs/apiserver.key",
                "--service-account-signing-key-file=certs/apiserver.key",
                "--authorization-mode=Node,RBAC",
                "--token-auth-file=tokens.csv",
                "--service-cluster-ip-range=10.0.0.0/24",
                "--delete-collection-workers=8",
                f"--disable-admission-plugins={','.join(ADMISSION_OFF)}",
                f"--runtime-config={self.runtime_config}",
                *gates,
            ],
        )
        self._wait_until_ready()
        self.credentials(self.kubeconfig, self.token)
        self.cluster = Cluster(self.url, self.token, self.kubeconfig, self.authority)
        for name in self.components:
            self._start_component(name, gates)

    def _start_component(self, name: str, gates: list[str]) -> None:
        kubeconfig = f"--kubeconfig={self.kubeconfig}"
        own_port = ["--leader-elect=false", "--bind-address=127.0.0.1", f"--secure-port={free_ports(1)[0]}"]
        if name == "kube-controller-manager":
            arguments = [
                kubeconfig,
                *own_port,
                f"--controllers={','.join(CONTROLLERS)}",
                "--use-service-account-credentials=false",
                f"--service-account-private-key-file={self.folder / 'certs' / 'apiserver.key'}",
                f"--root-ca-file={self.authority}",
                # Nobody sends heartbeats: a node is what its object says until a test says otherwise.
                "--node-monitor-grace-period=24h",
                *gates,
            ]
            self.start(name, [binaries.binary(name), *arguments])
        elif name == "kube-scheduler":
            self.start(name, [binaries.binary(name), kubeconfig, *own_port, *gates])
        elif name == "kubelet":
            command: list[str | Path] = [sys.executable, "-m", "tests.controlplane.kubelet", self.url, self.authority]
            self.start(name, command, env=os.environ | {"PYTHONPATH": str(ROOT), "KUBELET_TOKEN": self.token})
        else:
            raise ValueError(f"there is no component {name}")

    def _wait_until_ready(self, seconds: float = 60) -> None:
        context = create_default_context()
        context.check_hostname, context.verify_mode = False, CERT_NONE  # its certificate is still being made
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {self.token}"})
        until = time.monotonic() + seconds
        while time.monotonic() < until and all(process.poll() is None for process in self.running.values()):
            try:
                with urllib.request.urlopen(request, context=context, timeout=2):
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.05)
        tails = [f"{name}:\n{self.log(name)[-2000:]}" for name in self.running]
        raise RuntimeError("kube-apiserver did not become ready\n" + "\n".join(tails))
