"""How long it takes to read a large dump: 5,000 nodes and 50,000 pods, as `kubectl get -o json` writes them.

Limit: reading (and encoding, measured elsewhere) takes less than 4 s together and less than 1 GiB at its peak, so that
a what-if question about a large cluster is answered while one looks.

Method: `simulate.generate` with seed 1, every pod and node dressed with what a dump carries and scheduling never reads
(managed fields, environment, probes, volumes, mounts, container statuses, images): 4 kB per pod, 8 kB per node. A
fresh process per run reads the file (in the page cache) with `load_snapshot`; time by the wall clock around the call,
imports excluded; peak memory is VmHWM of /proc/self/status (the ru_maxrss of a child begins at its parent's, which
has just written the dump). Five runs; the median time and the largest peak count.

    python -m benchmarks.decode

Measured on 2 cores of an AMD EPYC, 23 GiB, Python 3.11, msgspec 0.23.0, 29 Nov 2026, the machine shared with other work
(load 5, so wall times are upper bounds): 240 MiB of JSON; 1.8 to 3.2 s, median 2.6 s, 1.7 s of CPU; 324 MiB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from solver_sched.simulate.generate import generate

Json = dict[str, Any]

LIMIT_SECONDS = 4.0
LIMIT_MIB = 1024

READ = """
import json, re, sys, time
from solver_sched import load_snapshot
start, cpu = time.perf_counter(), time.process_time()
snapshot = load_snapshot(sys.argv[1])
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
mib = int(re.search(r"VmHWM:\\s*([0-9]+)", open("/proc/self/status").read())[1]) // 1024
size = {"nodes": len(snapshot.nodes), "pods": len(snapshot.pods)}
print(json.dumps({"seconds": seconds, "cpu": cpu, "mib": mib, **size}))
"""


def dump(path: Path, nodes: int, pods: int) -> None:
    """Write a List of `nodes` nodes and the first `pods` pods of a generated cluster, dressed as in a dump."""
    objects = generate(nodes=nodes, gangs=2 * nodes // 5, seed=1, load="gangs")
    rows = [obj for obj in objects if obj["kind"] == "Pod"][:pods]
    others = [obj for obj in objects if obj["kind"] not in ("Pod", "Node")]
    hosts = [_node(obj) for obj in objects if obj["kind"] == "Node"]
    items = [*others, *hosts, *map(_pod, rows)]
    path.write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": items}))


def _managed(manager: str, fields: int) -> Json:
    names: Json = {f'k:{{"uid":"6f0f3d5e-8c1b-4a5e-9d0c-{n:012d}"}}': {".": {}, "f:value": {}} for n in range(fields)}
    time = "2026-01-01T00:00:00Z"
    return {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": time, "fieldsV1": names}


def _pod(pod: Json) -> Json:
    metadata, spec = pod["metadata"], pod["spec"]
    (container,) = spec["containers"]
    named, node = metadata["name"], spec.get("nodeName")
    env = [{"name": f"SETTING_{n}", "value": f"{named}-value-{n}"} for n in range(12)]
    token = f"kube-api-access-{len(named):05d}"
    mounts = [{"name": token, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}]
    probe = {
        "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
        "periodSeconds": 10,
        "failureThreshold": 3,
    }
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    effects = [("node.kubernetes.io/not-ready", 300), ("node.kubernetes.io/unreachable", 300)]
    dressed: Json = {
        **pod,
        "metadata": {
            **metadata,
            "resourceVersion": "4711",
            "labels": {"job-name": named.rpartition("-")[0], "app.kubernetes.io/part-of": metadata["namespace"]},
            "managedFields": [_managed("kube-controller-manager", 6), _managed("kubelet", 8)],
        },
        "spec": {
            **spec,
            "containers": [
                {
                    **container,
                    "image": "registry.example.org/team/train:2026.01",
                    "command": ["python", "-m", "train", "--config", f"/etc/{named}.yaml"],
                    "env": env,
                    "volumeMounts": mounts,
                    "livenessProbe": probe,
                    "readinessProbe": probe,
                    "terminationMessagePath": "/dev/termination-log",
                    "imagePullPolicy": "IfNotPresent",
                }
            ],
            "volumes": [{"name": token, "projected": {"sources": sources, "defaultMode": 420}}],
            "tolerations": [
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
                for key, seconds in effects
            ],
            "restartPolicy": "Never",
            "serviceAccountName": "default",
            "dnsPolicy": "ClusterFirst",
            "enableServiceLinks": True,
            "securityContext": {},
            "terminationGracePeriodSeconds": 30,
        },
    }
    if node:
        start = "2026-01-01T00:00:05Z"
        kinds = ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        dressed["status"] = {
            **pod["status"],
            "startTime": start,
            "hostIP": "10.0.0.1",
            "podIP": "10.1.0.1",
            "qosClass": "Burstable",
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": start} for kind in kinds],
            "containerStatuses": [
                {
                    "name": "main",
                    "ready": True,
                    "restartCount": 0,
                    "image": "registry.example.org/team/train:2026.01",
                    "imageID": "registry.example.org/team/train@sha256:" + "0" * 64,
                    "containerID": "containerd://" + "0" * 64,
                    "state": {"running": {"startedAt": start}},
                }
            ],
        }
    return dressed


def _node(node: Json) -> Json:
    images = [{"names": [f"registry.example.org/i{n}@sha256:" + "0" * 64], "sizeBytes": 10**8 + n} for n in range(40)]
    info = {"kubeletVersion": "v1.34.1", "osImage": "Linux", "architecture": "amd64", "kernelVersion": "6.1.0"}
    return {
        **node,
        "metadata": {**node["metadata"], "resourceVersion": "1", "managedFields": [_managed("kubelet", 20)]},
        "status": {**node["status"], "capacity": node["status"]["allocatable"], "images": images, "nodeInfo": info},
    }


def main() -> None:
    """Print one line per run and the median; exit 1 above the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dump.json"
        dump(path, arguments.nodes, arguments.pods)
        print(f"{path.stat().st_size / 2**20:.0f} MiB of JSON")
        runs = []
        for _ in range(arguments.runs):
            done = subprocess.run([sys.executable, "-c", READ, str(path)], check=True, capture_output=True, text=True)
            runs.append(json.loads(done.stdout))
            print("{seconds:.2f} s, {cpu:.2f} s of CPU, {mib} MiB, {nodes} nodes, {pods} pods".format(**runs[-1]))
    seconds = statistics.median(run["seconds"] for run in runs)
    mib = max(run["mib"] for run in runs)
    print(f"median {seconds:.2f} s (limit {LIMIT_SECONDS}), largest {mib} MiB (limit {LIMIT_MIB})")
    sys.exit(seconds >= LIMIT_SECONDS or mib >= LIMIT_MIB)


if __name__ == "__main__":
    main()
