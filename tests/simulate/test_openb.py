from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from solver_sched.errors import InputError
from solver_sched.simulate.openb import read

if TYPE_CHECKING:
    from pathlib import Path

NODES = """\
sn,cpu_milli,memory_mib,gpu,model
openb-node-0000,32000,262144,0,
openb-node-0001,96000,393216,8,G2
"""
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0
openb-pod-0001,6000,12288,1,460,,BE,Failed,427061,12902960,
openb-pod-0002,8000,30517,0,0,,LS,Pending,86400,12902960,1558381
openb-pod-0003,64000,262144,8,1000,V100M16|V100M32,LS,Running,1,2,1
"""


def files(folder: Path, nodes: str = NODES, pods: str = PODS) -> tuple[Path, Path]:
    (folder / "nodes.csv").write_text(nodes)
    (folder / "pods.csv").write_text(pods)
    return folder / "nodes.csv", folder / "pods.csv"


def requests(pod: dict[str, Any]) -> dict[str, str]:
    (container,) = pod["spec"]["containers"]
    found: dict[str, str] = container["resources"]["requests"]
    return found


def test_nodes_carry_capacity_and_model(tmp_path: Path) -> None:
    plain, gpu, *_ = read(*files(tmp_path))
    assert plain["status"]["allocatable"] == {"cpu": "32000m", "memory": "262144Mi", "pods": "110"}
    assert plain["metadata"]["labels"] == {"kubernetes.io/hostname": "openb-node-0000"}
    assert gpu["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert gpu["metadata"]["labels"]["nvidia.com/gpu.product"] == "G2"


def test_all_pods_are_pending_for_this_scheduler_whatever_the_trace_did(tmp_path: Path) -> None:
    pods = read(*files(tmp_path))[2:]
    assert {pod["status"]["phase"] for pod in pods} == {"Pending"}
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"solver-sched"}
    assert not any("nodeName" in pod["spec"] for pod in pods)


def test_a_share_is_a_whole_gpu_unless_told_otherwise(tmp_path: Path) -> None:
    one, share, none, eight = read(*files(tmp_path))[2:]
    assert [requests(pod).get("nvidia.com/gpu") for pod in (one, share, none, eight)] == ["1", "1", None, "8"]
    node, *pods = read(*files(tmp_path), gpu_share="milli")[1:]
    assert node["status"]["allocatable"]["solver-sched.io/gpu-milli"] == "8000"
    assert [requests(pod).get("solver-sched.io/gpu-milli") for pod in pods] == ["1000", "460", None, "8000"]
    assert not any("nvidia.com/gpu" in requests(pod) for pod in pods)


def test_allowed_models_become_node_affinity(tmp_path: Path) -> None:
    free, *_, bound = read(*files(tmp_path))[2:]
    assert "affinity" not in free["spec"]
    required = bound["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (expression,) = required["nodeSelectorTerms"][0]["matchExpressions"]
    assert expression == {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["V100M16", "V100M32"]}


def test_creation_times_count_from_one_start(tmp_path: Path) -> None:
    pods = read(*files(tmp_path))[2:]
    # 86,400 s = one day after second 0; 427,061 s = 4 days, 22 h 37 min 41 s.
    assert [pod["metadata"]["creationTimestamp"] for pod in pods[:3]] == [
        "2023-01-01T00:00:00Z",
        "2023-01-05T22:37:41Z",
        "2023-01-02T00:00:00Z",
    ]


def test_the_variant_without_times_reads_too(tmp_path: Path) -> None:
    short = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\nopenb-pod-0000,12000,16384,1,1000\n"
    *_, pod = read(*files(tmp_path, pods=short))
    assert requests(pod) == {"cpu": "12000m", "memory": "16384Mi", "nvidia.com/gpu": "1"}
    assert "creationTimestamp" not in pod["metadata"]


HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"


@pytest.mark.parametrize(
    ("pods", "line"),
    [
        (HEAD + "a,1,1,0,0\nb,-5,1,0,0\n", "row 3: cpu_milli: '-5' is not an integer from 0 to 1000000000"),
        (HEAD + "a,1,1.5,0,0\n", "row 2: memory_mib: '1.5' is not an integer from 0 to 1000000000"),
        (HEAD + "a,1,1,,0\n", "row 2: num_gpu: empty: a value is needed"),
        (HEAD + "a,1,1,1,1500\n", "row 2: gpu_milli: 1500 is more than one GPU, 1000: several GPUs stand in num_gpu"),
        (HEAD + "a,1,1,0,0\na,1,1,0,0\n", "row 3: name: a stands in row 2 already"),
        (HEAD + "a,1,1\n", "row 2: 3 columns, the header has 5"),
        ("name,cpu_milli\n", "row 1: no column memory_mib, num_gpu, gpu_milli; needed are " + HEAD.strip()),
        ("", "row 1: no column " + HEAD.strip().replace(",", ", ") + "; needed are " + HEAD.strip()),
    ],
)
def test_a_bad_row_is_one_line_with_file_row_and_column(tmp_path: Path, pods: str, line: str) -> None:
    nodes_csv, pods_csv = files(tmp_path, pods=pods)
    with pytest.raises(InputError) as caught:
        read(nodes_csv, pods_csv)
    assert str(caught.value) == f"{pods_csv}: {line}"


def test_a_missing_or_binary_file_is_one_line(tmp_path: Path) -> None:
    nodes_csv, pods_csv = files(tmp_path)
    with pytest.raises(InputError, match=r"none\.csv: cannot be read: No such file or directory"):
        read(tmp_path / "none.csv", pods_csv)
    pods_csv.write_bytes(b"\x00\xff\xfe\x80")
    with pytest.raises(InputError, match=r"pods\.csv: cannot be read: not a CSV text"):
        read(nodes_csv, pods_csv)


def test_an_unknown_share_mode_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be one of whole, milli"):
        read(*files(tmp_path), gpu_share="half")  # type: ignore[arg-type]
