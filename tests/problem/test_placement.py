"""What placement makes of small clusters: shapes, kinds, masks, soft scores, rules, and what it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from solver_sched.cluster.objects import (
    AttachLimit,
    HostPort,
    Namespace,
    Needs,
    Node,
    NodeTerm,
    Pod,
    PodTerm,
    Requirement,
    Spread,
    Taint,
    Toleration,
    VolumeClaim,
)
from solver_sched.problem.arrays import AtMostOne, Exclude, Require, SpreadRule
from solver_sched.problem.domain_rules import broken, class_columns
from solver_sched.problem.placement import Placement, place
from solver_sched.snapshot import Snapshot

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


def node(name: str, zone: str = "", **fields: Any) -> Node:
    labels = {HOST: name, **({ZONE: zone} if zone else {}), **fields.pop("labels", {})}
    return Node(name, {"cpu": 8000, "pods": 110}, labels, **fields)


def pod(name: str, at: str | None = None, app: str = "", namespace: str = "ns", **fields: Any) -> Pod:
    """A pod with the label app; `needs` fields by name, pod fields (terminating) as well."""
    own = {key: fields.pop(key) for key in ("terminating",) if key in fields}
    labels = {"app": app} if app else {}
    phase = "Pending" if at is None else "Running"
    return Pod(namespace, name, Needs(**fields), labels=labels, node=at, phase=phase, **own)


def app_is(value: str) -> tuple[Requirement, ...]:
    return (Requirement("app", "In", (value,)),)


def term(value: str, key: str = HOST, weight: int = 0, **fields: Any) -> PodTerm:
    return PodTerm(key, app_is(value), fields.pop("namespaces", ("ns",)), weight=weight, **fields)


def placed(nodes: list[Node], pending: list[Pod], resident: list[Pod] | None = None, **snapshot: Any) -> Placement:
    return place(nodes, pending, resident or [], Snapshot(nodes=tuple(nodes), **snapshot))


def closed(placement: Placement, code: str, pod_row: int = 0) -> list[int]:
    """Node rows that the predicate closes to a pending pod."""
    if code not in placement.masks:
        return []
    row = placement.masks[code][placement.shape_of[pod_row]]
    return [n for n, kind in enumerate(placement.node_kind) if row[kind]]


class TestShapesAndKinds:
    def test_labels_that_no_selector_reads_split_neither_shapes_nor_kinds(self) -> None:
        result = placed([node("n1", "a"), node("n2", "b")], [pod("p", app="web"), pod("q", app="db")])
        assert result.shape_of.tolist() == [0, 0]
        assert result.node_kind.tolist() == [0, 0]
        assert result.masks == {}
        assert result.rules == ()

    def test_members_of_one_gang_that_differ_in_selector_are_different_shapes(self) -> None:
        # BR-30: a node unfit for the master is not unfit for the worker
        nodes = [node("c1", labels={"kind": "cpu"}), node("g1", labels={"kind": "gpu"})]
        result = placed(
            nodes, [pod("master", node_selector=(("kind", "cpu"),)), pod("worker", node_selector=(("kind", "gpu"),))]
        )
        assert closed(result, "NodeAffinity", 0) == [1]
        assert closed(result, "NodeAffinity", 1) == [0]

    def test_equal_needs_are_one_shape_though_they_are_different_objects(self) -> None:
        result = placed([node("n1")], [pod(n, tolerations=(Toleration("a"),)) for n in "pq"])
        assert result.shape_of.tolist() == [0, 0]
        assert [p.name for p in result.representative] == ["p"]

    def test_kinds_merge_values_that_no_pod_tells_apart(self) -> None:
        # three values of disk, but one question: is it hdd?
        nodes = [node(f"n{i}", labels={"disk": disk}) for i, disk in enumerate(("ssd", "hdd", "nvme", "ssd"))]
        avoid = (NodeTerm((Requirement("disk", "NotIn", ("hdd",)),)),)
        assert placed(nodes, [pod("p", node_affinity=avoid)]).node_kind.tolist() == [0, 1, 0, 0]

    def test_the_only_pod_that_repels_its_own_kind_is_an_ordinary_pod(self) -> None:
        result = placed([node("n1")], [pod("p", app="one", anti_affinity=(term("one"),)), pod("q")])
        assert result.shape_of.tolist() == [0, 0]
        assert result.rules == ()

    def test_no_nodes_and_no_pods_are_valid(self) -> None:
        assert placed([], [pod("p")]).node_kind.tolist() == []
        assert placed([node("n1")], []).shape_of.tolist() == []
        assert placed([], [pod(n, app="a", anti_affinity=(term("a"),), affinity=(term("a"),)) for n in "pq"]).held == {}


class TestNodeFilters:
    def test_match_fields_and_greater_than(self) -> None:
        nodes = [node(f"n{i}", labels={"cores": str(cores)}) for i, cores in enumerate((8, 16, 100))]
        big = NodeTerm((Requirement("cores", "Gt", ("9",)),), (Requirement("metadata.name", "NotIn", ("n2",)),))
        assert closed(placed(nodes, [pod("p", node_affinity=(big,))]), "NodeAffinity") == [0, 2]

    def test_hard_taints_close_soft_ones_only_cost(self) -> None:
        # BR-60
        nodes = [
            node("n1", taints=(Taint("dedicated", "x", "NoSchedule"),)),
            node("n2", taints=(Taint("draining", "", "NoExecute"),)),
            node("n3", taints=(Taint("slow", "", "PreferNoSchedule"),)),
            node("n4"),
        ]
        result = placed(nodes, [pod("p"), pod("q", tolerations=(Toleration("", "Exists"),))])
        assert closed(result, "Taints", 0) == [0, 1]
        assert closed(result, "Taints", 1) == []
        soft = result.soft["tainttoleration"]
        assert soft[0][result.node_kind[2:]].tolist() == [0, 100]
        assert soft[1][result.node_kind].tolist() == [100, 100, 100, 100]

    def test_cordoned_and_unready_nodes(self) -> None:
        # a DaemonSet's pods tolerate the first; nothing helps on the second
        tolerant = pod("d", tolerations=(Toleration("", "Exists"),))
        result = placed([node("n1", unschedulable=True), node("n2", ready=False), node("n3")], [pod("p"), tolerant])
        assert closed(result, "Unschedulable", 0) == [0]
        assert closed(result, "Unschedulable", 1) == []
        assert closed(result, "NotReady", 0) == closed(result, "NotReady", 1) == [1]

    def test_preferred_terms_are_scaled_to_the_best_node_that_is_allowed(self) -> None:
        # n1 sums 80 + 20 but is cordoned, n2 40, n3 20: the best allowed, 40, is 100
        likes = tuple(
            (weight, NodeTerm((Requirement(key, "Exists"),))) for weight, key in ((80, "a"), (40, "b"), (20, "c"))
        )
        nodes = [
            node("n1", unschedulable=True, labels={"a": "", "c": ""}),
            node("n2", labels={"b": ""}),
            node("n3", labels={"c": ""}),
        ]
        result = placed(nodes, [pod("p", preferred_nodes=likes)])
        assert result.soft["nodeaffinity"][0][result.node_kind[1:]].tolist() == [100, 50]


class TestPorts:
    def test_a_port_in_use_closes_the_node_until_the_pod_is_gone(self) -> None:
        # BR-72: the reader drops finished pods; one that is being deleted still holds its port
        port = HostPort("", "TCP", 80)
        result = placed(
            [node("n1"), node("n2")], [pod("p", ports=(port,))], [pod("old", "n1", ports=(port,), terminating=True)]
        )
        assert closed(result, "Ports") == [0]

    def test_all_addresses_overlap_each_and_protocols_are_apart(self) -> None:
        held = pod("old", "n1", ports=(HostPort("10.0.0.1", "TCP", 80),))
        asks = [HostPort("0.0.0.0", "TCP", 80), HostPort("10.0.0.2", "TCP", 80), HostPort("0.0.0.0", "UDP", 80)]
        result = placed([node("n1")], [pod(f"p{i}", ports=(ask,)) for i, ask in enumerate(asks)], [held])
        assert [closed(result, "Ports", row) for row in range(3)] == [[0], [], []]

    def test_two_pending_pods_with_one_port_take_two_nodes(self) -> None:
        result = placed([node("n1"), node("n2")], [pod(name, ports=(HostPort("", "TCP", 80),)) for name in "pq"])
        (rule,) = result.rules
        assert isinstance(rule, AtMostOne)
        assert rule.per_node
        assert rule.source == "Ports: 0.0.0.0:80/TCP"

    def test_two_ports_of_one_pod_are_one_rule_and_a_part_of_a_rule_is_none(self) -> None:
        # p and q share 80 and 81, r only 80
        both = (HostPort("", "TCP", 80), HostPort("", "TCP", 81))
        result = placed([node("n1")], [pod("p", ports=both), pod("q", ports=both), pod("r", ports=both[:1])])
        assert [rule.shapes.tolist() for rule in result.rules if isinstance(rule, AtMostOne)] == [[0, 1]]

    def test_specific_addresses_conflict_only_through_the_pod_on_all_of_them(self) -> None:
        ips = ("10.0.0.1", "10.0.0.2", "0.0.0.0")
        result = placed([node("n1")], [pod(ip, ports=(HostPort(ip, "TCP", 80),)) for ip in ips])
        assert sorted(rule.shapes.tolist() for rule in result.rules if isinstance(rule, AtMostOne)) == [[0, 2], [1, 2]]


class TestInterPod:
    def test_gangs_that_repel_one_label_are_one_rule_of_one_pod_per_node(self) -> None:
        # BR-25, BR-57
        small, large = (("cpu", 1000), ("pods", 1)), (("cpu", 2000), ("pods", 1))
        gangs = [pod(n, app="wide", anti_affinity=(term("wide"),), request=small) for n in ("a0", "a1")]
        gangs += [pod(n, app="wide", anti_affinity=(term("wide"),), request=large) for n in ("b0", "b1")]
        result = placed([node("n1"), node("n2")], gangs)
        (rule,) = result.rules
        assert isinstance(rule, AtMostOne)
        assert (rule.per_node, rule.shapes.tolist()) == (True, [0, 1])
        assert class_columns(result.rules, 2).shape == (2, 0)

    def test_anti_affinity_per_zone_is_counted_per_zone_and_not_where_the_key_is_missing(self) -> None:
        nodes = [node("n1", "a"), node("n2", "a"), node("n3")]
        result = placed(nodes, [pod(n, app="x", anti_affinity=(term("x", ZONE),)) for n in "pq"])
        (rule,) = result.rules
        assert isinstance(rule, AtMostOne)
        assert (rule.per_node, rule.domain.tolist()) == (False, [0, 0, -1])

    def test_a_node_without_hostname_is_in_no_domain_so_the_rule_is_not_one_per_node(self) -> None:
        result = placed([node("n1"), Node("n2", {})], [pod(n, app="x", anti_affinity=(term("x"),)) for n in "pq"])
        (rule,) = result.rules
        assert isinstance(rule, AtMostOne)
        assert (rule.per_node, rule.domain.tolist()) == (False, [0, -1])

    def test_a_running_pod_is_repelled_by_newcomers_and_repels_them(self) -> None:
        # quiet (on n1) wants no loud pod near it; loud is kept out by a term it does not have itself
        quiet = pod("quiet", "n1", app="quiet", anti_affinity=(term("loud"),))
        result = placed(
            [node("n1"), node("n2")],
            [pod("loud", app="loud"), pod("shy", app="shy", anti_affinity=(term("quiet"),)), pod("other", app="other")],
            [quiet],
        )
        assert [closed(result, "InterPodAffinity", row) for row in range(3)] == [[0], [0], []]

    def test_one_sided_repulsion_between_pending_pods_is_an_exclusion(self) -> None:
        result = placed([node("n1")], [pod("web", app="web", anti_affinity=(term("batch"),)), pod("job", app="batch")])
        (rule,) = result.rules
        assert isinstance(rule, Exclude)
        assert (rule.left.tolist(), rule.right.tolist()) == ([0], [1])

    def test_two_that_exclude_each_other_are_one_rule(self) -> None:
        a = pod("a", app="a", anti_affinity=(term("b"),))
        b = pod("b", app="b", anti_affinity=(term("a"),))
        assert len(placed([node("n1")], [a, b]).rules) == 1

    def test_exclusions_of_different_pods_are_different_rules(self) -> None:
        pending = [pod("a", app="a"), pod("b", app="b"), *(pod(f"no-{x}", anti_affinity=(term(x),)) for x in "ab")]
        result = placed([node("n1")], pending)
        for pair, allowed in (((0, 2), False), ((1, 3), False), ((0, 3), True), ((1, 2), True)):
            on_nodes = np.zeros((4, 1), np.int64)
            on_nodes[list(pair)] = 1
            assert (not list(broken(result.rules, on_nodes))) == allowed

    @pytest.mark.parametrize(
        ("reaches", "fields"),
        [
            (False, {}),
            (True, {"namespaces": ("other",)}),
            (True, {"namespace_selector": ()}),
            (True, {"namespace_selector": (Requirement("team", "In", ("ml",)),)}),
            (True, {"namespace_selector": (Requirement("kubernetes.io/metadata.name", "In", ("bare",)),)}),
            (False, {"namespace_selector": (Requirement("team", "In", ("web",)),)}),
        ],
    )
    def test_a_term_looks_into_its_namespaces_or_those_it_selects(self, reaches: bool, fields: dict[str, Any]) -> None:
        # `bare` stands for a dump without Namespace objects
        where = "bare" if "metadata.name" in str(fields) else "other"
        running = pod("old", "n1", app="x", namespace=where)
        result = placed(
            [node("n1")],
            [pod("p", anti_affinity=(term("x", **fields),))],
            [running],
            namespaces=(Namespace("other", {"team": "ml"}),),
        )
        assert closed(result, "InterPodAffinity") == ([0] if reaches else [])

    def test_affinity_follows_the_running_pod_into_its_zone(self) -> None:
        result = placed(
            [node("n1", "a"), node("n2", "a"), node("n3", "b"), node("n4")],
            [pod("p", app="p", affinity=(term("db", ZONE),))],
            [pod("db", "n1", app="db")],
        )
        assert closed(result, "InterPodAffinity") == [2, 3]
        assert result.rules == ()

    def test_affinity_to_nobody_closes_every_node(self) -> None:
        assert closed(placed([node("n1")], [pod("p", affinity=(term("db"),))]), "InterPodAffinity") == [0]

    def test_a_gang_that_requires_itself_opens_one_node(self) -> None:
        gang = [pod(n, app="g", affinity=(term("g"),)) for n in "pq"]
        result = placed([node("n1"), node("n2")], gang)
        (rule,) = result.rules
        assert isinstance(rule, Require)
        assert rule.seed
        assert not rule.present.any()

    def test_a_gang_that_requires_itself_follows_a_running_member(self) -> None:
        gang = [pod(n, app="g", affinity=(term("g"),)) for n in "pq"]
        result = placed([node("n1"), node("n2")], gang, [pod("old", "n2", app="g")])
        assert closed(result, "InterPodAffinity") == [0]
        assert result.rules == ()

    def test_a_pod_follows_a_pending_one_of_another_shape(self) -> None:
        result = placed([node("n1"), node("n2")], [pod("db", app="db"), pod("web", app="web", affinity=(term("db"),))])
        (rule,) = result.rules
        assert isinstance(rule, Require)
        assert (rule.shapes.tolist(), rule.targets.tolist(), rule.seed) == ([1], [0], False)

    def test_roles_that_require_one_label_of_the_gang_share_one_seed(self) -> None:
        gang = [pod(f"p{cpu}", app="g", affinity=(term("g"),), request=(("cpu", cpu), ("pods", 1))) for cpu in (1, 2)]
        result = placed([node("n1"), node("n2")], gang)
        (rule,) = result.rules
        assert isinstance(rule, Require)
        assert (rule.shapes.tolist(), rule.targets.tolist()) == ([0, 1], [0, 1])

    def test_a_node_inside_a_zone_does_not_cross_it(self) -> None:
        gang = [pod(n, app="g", affinity=(term("g", ZONE), term("g", HOST))) for n in "pq"]
        result = placed([node("n1", "a"), node("n2", "a"), node("n3", "b")], gang)
        assert result.held == {}
        assert sorted(rule.domain.tolist() for rule in result.rules) == [[0, 0, 1], [0, 1, 2]]

    def test_the_opener_of_two_crossing_topologies_is_held(self) -> None:
        nodes = [node(f"{z}{r}", z, labels={"rack": r}) for z in "ab" for r in "12"]
        both = (term("g", ZONE), term("g", "rack"))
        result = placed(nodes, [pod("p", app="g", affinity=both), pod("free")])
        assert result.held == {0: ("InterPodAffinity", f"would open an affinity over rack and {ZONE}, which cross")}
        assert result.shape_of.tolist()[0] == -1

    def test_of_two_topologies_that_pods_of_one_label_would_open_the_second_is_held(self) -> None:
        # p on n3 opens zone b for label g; q then finds a g elsewhere and may not open n1, nor the other way round
        nodes = [node("n1", "a"), node("n2", "a"), node("n3", "b")]
        gang = [pod("p", app="g", affinity=(term("g", HOST),)), pod("q", app="g", affinity=(term("g", ZONE),))]
        result = placed(nodes, gang)
        opened = f"would open an affinity over {ZONE}, beside others over {HOST}"
        assert result.held == {1: ("InterPodAffinity", opened)}
        # one that does not match the other's term is free: it comes first, when nothing matches its own
        apart = [gang[0], pod("q", app="h", affinity=(term("h", ZONE),))]
        assert placed(nodes, apart).held == {}
        # and so are both once a g runs: nobody opens anything
        assert placed(nodes, gang, [pod("old", "n2", app="g")]).held == {}

    def test_wishes_of_newcomer_and_running_pods_add_up(self) -> None:
        # n1: p likes cache, +60. n2: a running pod dislikes p, -40. n3: 0. Scaled from -40..60 to 0..100: 100, 0, 40
        dislikes = pod("old", "n2", app="old", preferred_anti_affinity=(term("p", weight=40),))
        result = placed(
            [node("n1"), node("n2"), node("n3")],
            [pod("p", app="p", preferred_affinity=(term("cache", weight=60),))],
            [pod("cache", "n1", app="cache"), dislikes],
        )
        assert result.soft["podaffinity"][0][result.node_kind].tolist() == [100, 0, 40]


class TestSpread:
    def test_running_pods_count_per_zone(self) -> None:
        # BR-58: az1 holds two, az2 none; both new pods fit into az2 only
        nodes = [node("n1", "az1"), node("n2", "az1"), node("n3", "az2"), node("n4")]
        old = [pod("old-0", "n1", app="demo"), pod("old-1", "n2", app="demo")]
        going = [pod("gone", "n3", app="demo", terminating=True), pod("alien", "n3", app="demo", namespace="other")]
        even = (Spread(ZONE, 1, True, app_is("demo")),)
        result = placed(nodes, [pod(n, app="demo", spread=even) for n in "pq"], old + going)
        assert closed(result, "TopologySpread") == [3]
        (rule,) = result.rules
        assert isinstance(rule, SpreadRule)
        assert (rule.domain.tolist(), rule.existing.tolist()) == ([0, 0, 1, -1], [2, 0])
        assert (rule.shapes.tolist(), rule.counted.tolist()) == ([0], [0])

    def test_tainted_nodes_are_domains_unless_the_policy_honours_taints(self) -> None:
        nodes = [node("n1", "a"), node("n2", "b", taints=(Taint("t", "", "NoSchedule"),))]
        for honoured, domains in ((False, [0, 1]), (True, [0, -1])):
            even = (Spread(ZONE, 1, True, app_is("x"), honor_node_taints=honoured, min_domains=3),)
            (rule,) = placed(nodes, [pod(n, app="x", spread=even) for n in "pq"]).rules
            assert isinstance(rule, SpreadRule)
            assert rule.domain.tolist() == domains

    def test_nodes_outside_the_own_selector_are_no_domains_by_default(self) -> None:
        nodes = [node("n1", "a", labels={"disk": "ssd"}), node("n2", "b"), node("n3", "c", labels={"disk": "ssd"})]
        even = (Spread(ZONE, 1, True, app_is("x")),)
        pods = [pod(n, app="x", spread=even, node_selector=(("disk", "ssd"),)) for n in "pq"]
        (rule,) = placed(nodes, pods).rules
        assert isinstance(rule, SpreadRule)
        assert rule.domain.tolist() == [0, -1, 1]

    def test_a_constraint_that_cannot_be_broken_is_no_rule(self) -> None:
        even = (Spread(ZONE, 2, True, app_is("x")),)
        assert placed([node("n1", "a"), node("n2", "b")], [pod(n, app="x", spread=even) for n in "pq"]).rules == ()

    def test_even_domains_still_break_the_skew_when_there_are_fewer_than_demanded(self) -> None:
        # 5 + 1 - 0 = 6 > 1, though 5 + 1 - 5 would be fine
        even = (Spread(ZONE, 1, True, app_is("x"), min_domains=3),)
        running = [pod(f"{n}-{i}", n, app="x") for n in ("n1", "n2") for i in range(5)]
        result = placed([node("n1", "a"), node("n2", "b")], [pod("p", app="x", spread=even)], running)
        assert len(list(broken(result.rules, np.array([[1, 0]])))) == 1

    def test_a_wish_to_spread_is_no_rule(self) -> None:
        even = (Spread(ZONE, 1, False, app_is("x")),)
        result = placed([node("n1", "a"), node("n2")], [pod(n, app="x", spread=even) for n in "pq"])
        assert (result.rules, result.masks) == ((), {})


class TestVolumes:
    def test_a_bound_volume_ties_the_pod_to_its_zone(self) -> None:
        reach = (NodeTerm((Requirement(ZONE, "In", ("a",)),)),)
        result = placed(
            [node("n1", "a"), node("n2", "b")],
            [pod("p", volume_claims=("data",))],
            claims=(VolumeClaim("ns", "data", volume="pv", nodes=reach),),
        )
        assert closed(result, "Volumes") == [1]

    @pytest.mark.parametrize(
        ("claim", "says"),
        [
            (None, "claim ns/data does not exist"),
            (VolumeClaim("ns", "data", missing="is being deleted"), "claim ns/data: is being deleted"),
            (VolumeClaim("ns", "data"), "claim ns/data is not bound, and its class binds before a pod is placed"),
        ],
    )
    def test_a_claim_that_cannot_be_used_holds_the_pod(self, claim: VolumeClaim | None, says: str) -> None:
        claims = () if claim is None else (claim,)
        result = placed([node("n1")], [pod("p", volume_claims=("data",)), pod("q")], claims=claims)
        assert result.held == {0: ("Volumes", says)}
        assert result.shape_of.tolist() == [-1, 0]

    def test_claims_that_ask_the_same_do_not_split_a_stateful_set(self) -> None:
        claims = tuple(VolumeClaim("ns", f"data-{i}", wait=True) for i in "01")
        result = placed([node("n1")], [pod(f"p{i}", volume_claims=(f"data-{i}",)) for i in "01"], claims=claims)
        assert result.shape_of.tolist() == [0, 0]

    def test_attach_limits_are_a_resource_that_running_volumes_use_up(self) -> None:
        # n1 attaches 3, two pods share one volume there: 2 left. n2 has no limit: room for both asked.
        claims = (
            VolumeClaim("ns", "old", volume="pv-old", driver="ebs"),
            *(VolumeClaim("ns", f"new-{i}", wait=True, driver="ebs") for i in "01"),
        )
        result = placed(
            [node("n1"), node("n2")],
            [pod(f"p{i}", volume_claims=(f"new-{i}",)) for i in "01"],
            [pod("r0", "n1", volume_claims=("old",)), pod("r1", "n1", volume_claims=("old",))],
            claims=claims,
            attach_limits=(AttachLimit("n1", "ebs", 3), AttachLimit("gone", "ebs", 1)),
        )
        ((name, request, free, allocatable),) = result.extra
        assert name == "attachable-volumes-csi-ebs"
        assert (request.tolist(), free.tolist(), allocatable.tolist()) == ([1], [2, 2], [3, 2])

    def test_a_claim_for_one_pod_is_for_one_pod_in_the_cluster(self) -> None:
        claims = (VolumeClaim("ns", "data", volume="pv", access_modes=("ReadWriteOncePod",)),)
        pods = [pod(n, volume_claims=("data",)) for n in "pq"]
        (rule,) = placed([node("n1"), node("n2")], pods, claims=claims).rules
        assert isinstance(rule, AtMostOne)
        assert (rule.per_node, rule.domain.tolist()) == (False, [0, 0])
        in_use = placed([node("n1"), node("n2")], pods, [pod("r", "n1", volume_claims=("data",))], claims=claims)
        assert closed(in_use, "Volumes") == [0, 1]

    def test_pods_that_share_a_claim_still_to_be_bound_meet_on_one_node(self) -> None:
        claims = (VolumeClaim("ns", "data", wait=True, access_modes=("ReadWriteOnce",)),)
        result = placed([node("n1"), node("n2")], [pod(n, volume_claims=("data",)) for n in "pq"], claims=claims)
        (rule,) = result.rules
        assert isinstance(rule, Require)
        apart, together = np.array([[1, 1]]), np.array([[2, 0]])
        assert [message for _, message in broken(result.rules, apart)] == [
            "Volumes: claim ns/data will be on one node: 2 domains opened (0, 1), 1 allowed"
        ]
        assert list(broken(result.rules, together)) == []
        shared = (VolumeClaim("ns", "data", wait=True, access_modes=("ReadWriteMany",)),)
        assert placed([node("n1")], [pod(n, volume_claims=("data",)) for n in "pq"], claims=shared).rules == ()
