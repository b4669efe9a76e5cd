"""Why a group waits: one primary reason with the numbers behind it.

Causes are looked for in the order of `reason.Found`: first what waiting for room would not cure (missing members, no
eligible node, a quota), then what the cluster lacks even with nothing else placed this cycle, then who was placed
instead. What holds a group back alone is told before what holds it back beside the plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from solver_sched.cluster.objects import Pod
from solver_sched.explain.amounts import Amounts, names
from solver_sched.explain.claims import Claims
from solver_sched.explain.competitors import Competitors
from solver_sched.explain.gangs import Gangs
from solver_sched.explain.ladder import Ladder
from solver_sched.explain.quota import Quota
from solver_sched.explain.reason import Found, Reason
from solver_sched.explain.removal import Removal
from solver_sched.explain.reserved import Reserved, without_reservations
from solver_sched.explain.room import Ground, Part, Room, Want, open_kinds
from solver_sched.explain.waiting import Waiting
from solver_sched.model.effort import LevelResult
from solver_sched.plugins.rules import Rules
from solver_sched.problem.arrays import DomainRule, Index, Ints, Plan, Problem
from solver_sched.problem.domain_rules import touched
from solver_sched.problem.reservations import Reservation
from solver_sched.snapshot import Snapshot

SHORT_OF_ROOM = ("QueueCapability", "QueueGuarantee", "Resources", "Fragmentation", "QueueShare", "Lost")
"""Codes of causes that running work could cure by making room."""
LISTED = 10
"""Groups named in `detail.displacedBy`."""


def explain(
    snapshot: Snapshot,
    problem: Problem,
    index: Index,
    rules: Rules,
    plan: Plan,
    levels: Sequence[LevelResult],
    reserved: Sequence[Reservation] = (),
) -> dict[str, Reason]:
    """Reason per group key, for groups (and pods without one) with pods that `plan` does not bind at once.

    `levels`: of the solve that made the plan, empty for a greedy plan. `reserved`: what the problem was encoded with.
    """
    row = {key: j for j, key in enumerate(index.jobs)}
    held_pods = _held_pods(snapshot, index, row)
    after = problem.after(plan)
    kept = Reserved(snapshot, after, index, rules, plan, reserved)
    # what is short is told without reservations, which come after it
    plain, plain_after = without_reservations(problem), without_reservations(after)
    waiting = Waiting(problem, index, rules, plan)
    idle = np.maximum(0, problem.node_free - problem.node_releasing)
    shared = (index, rules, plan, levels, kept, waiting, idle)
    diagnosis = _Diagnosis(plain, plain_after, *shared)
    # room that victims leave is there for whoever may take from them, and for others only what is left of it
    entitled = _Diagnosis(plain_after, plain_after, *shared) if len(plan.victim) else diagnosis
    evicting = rules.policy.preempts or rules.policy.reclaims
    told = (diagnosis.quota, diagnosis.levels, diagnosis.amounts)
    claims = Claims(snapshot, plain, index, rules, plan, *told) if evicting else None
    out: dict[str, Reason] = {}
    for member in index.members:
        if member.name in row:
            j = row[member.name]
            whose = entitled if claims is not None and claims.takes_from_plan(j) else diagnosis
            reason = whose.of(j, held_pods.get(member.name, []), claims)
            if reason is not None:
                out[member.name] = reason
        elif member.pending and member.name in index.held:
            code, message = index.held[member.name]
            out[member.name] = Reason(code, message, {"held": True})
    return out


@dataclass(frozen=True, slots=True)
class _HeldPod:
    """A pod that must not be decided on, of a group that has others."""

    role: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class _Finding:
    """A code, the clause of the message that says why, and what it adds to `detail`."""

    code: str
    clause: str
    detail: Mapping[str, Any] = field(default_factory=dict)


def _held_pods(snapshot: Snapshot, index: Index, row: Mapping[str, int]) -> dict[str, list[_HeldPod]]:
    """Group key -> its held pods, for groups of which other pods may be decided on."""
    members = {member.name for member in index.members}
    keys = {key for key in index.held if key in row or key not in members}
    out: dict[str, list[_HeldPod]] = defaultdict(list)
    for pod in snapshot.pods if keys else ():
        if pod.key in keys and _group(pod) in row:
            out[_group(pod)].append(_HeldPod(pod.role, *index.held[pod.key]))
    return out


def _group(pod: Pod) -> str:
    return pod.key if pod.group is None else pod.group


class _Diagnosis:
    """One cycle's rooms, queues and placements, shared by the diagnoses of all groups. `problem`: with the room in
    which a group stands alone; `after`: when the victims of the plan have gone; `idle` (N, R): what is free at once.
    """

    def __init__(
        self,
        problem: Problem,
        after: Problem,
        index: Index,
        rules: Rules,
        plan: Plan,
        levels: Sequence[LevelResult],
        reserved: Reserved,
        waiting: Waiting,
        idle: Ints,
    ) -> None:
        self.reserved, self.waiting, self.idle = reserved, waiting, idle
        self.problem, self.index, self.rules, self.plan = problem, index, rules, plan
        self.levels = Ladder(levels, rules.rank_names)
        self.amounts = Amounts(index.resources)
        self.quota = Quota(after, index, rules, plan, self.amounts)
        self.alone = Room(problem, rules)
        self.beside = Room(after, rules, plan, self.alone.coupling)
        self.removal = Removal(problem, rules)
        self.competitors = Competitors(problem, rules, plan)
        self.placed: list[int] = plan.placed(problem).tolist()
        self.gangs = Gangs(problem, rules, self.removal.eligible)
        self.count, self.shape, self.role = self.gangs.count, self.gangs.shape, self.gangs.role
        self._inactive = self._shapes_without_action()
        self._pod_sets: dict[int, dict[str, Any]] = {}
        self._rivals: dict[int, dict[str, Any]] = {}
        self._up_to: dict[int, Room] = {}

    def of(self, j: int, held: Sequence[_HeldPod], claims: Claims | None) -> Reason | None:
        """The reason of job row `j`, None if all its pods are bound. `claims`: None where nobody may be evicted."""
        sets, waits = self.gangs.sets[j], self.waiting.pods.get(j, 0)
        left = [t for t in sets if self.placed[t] < self.count[t]]
        if not left and not held:
            if not waits:
                return None
            found = _Finding("Nominated", self.waiting.clause(j), self.waiting.detail(j))
            return Reason(found.code, found.clause, self._detail(j, {}, held, found))
        new = sum(self.placed[t] for t in sets)
        if self.rules.need[j] > 0 and not new:
            needs = self.gangs.needed(j)
            found = self._start(j, needs, held)
            if claims is not None and found.code in SHORT_OF_ROOM:
                clause, record = claims.of(j, self.gangs.minimum(j), self.gangs.ask(needs))
                found = replace(
                    found, clause=f"{found.clause}; evictions: {clause}", detail={**found.detail, "evictions": record}
                )
            message = found.clause
        else:
            needs = {left[0]: 1} if left else {}
            found = self._growth(j, left[0]) if left else self._waits_for(held)
            ready = int(self.problem.job_ready[j]) + new - waits
            everyone = int(self.problem.job_ready[j]) + sum(self.count[t] for t in sets) + len(held)
            message = f"{ready} of {everyone} run; {found.clause}"
            if waits:
                message = f"{ready} of {everyone} run, {self.waiting.clause(j)}; {found.clause}"
                found = replace(found, detail={**found.detail, **self.waiting.detail(j)})
        detail = self._detail(j, needs, held, found)
        expected = self.reserved.expected(self.index.jobs[j])
        if expected is not None:
            return Reason(found.code, message + expected[0], {**detail, **expected[1]})
        return Reason(found.code, message, detail)

    # -- a gang that does not start ------------------------------------------------------------------------------

    def _start(self, j: int, needs: Mapping[int, int], held: Sequence[_HeldPod]) -> _Finding:
        missing = self._incomplete(j, held) or self._not_placeable(j)
        if missing is not None:
            return missing
        want, ask = self.gangs.minimum(j), self.gangs.ask(needs)
        q = int(self.problem.job_queue[j])
        refusal = self.quota.refuses(q, ask)
        if refusal is not None and self.quota.refuses(q, ask, before=True) is not None:
            return _Finding(refusal.code, refusal.clause)
        if self.alone.gang(want) < want.need and self.beside.gang(want) < want.need:
            return self._shortage(j, want, ask)
        if (kept := self._kept(want, next(iter(needs)), beside=False)) is not None:
            return kept
        if refusal is not None:
            return _Finding(refusal.code, refusal.clause, self._displaced(self.competitors.in_queue(q)))
        if self.beside.gang(want) >= want.need:
            kept = self._kept(want, next(iter(needs)), beside=True)
            return kept if kept is not None else self._unsolved("fits beside the plan")
        fits = "fits alone"
        if want.need > 1:
            # told only of gangs that fit alone, so the first number is the need itself
            fits += f" ({want.need} of {want.need} pods, beside the plan {self.beside.gang(want)})"
        return self._competition(j, want, ask, fits, "start")

    def _incomplete(self, j: int, held: Sequence[_HeldPod]) -> _Finding | None:
        """Fewer members than the minimum exist, or may be decided on."""
        need, ready = int(self.rules.need[j]), int(self.problem.job_ready[j])
        free = sum(self.count[t] for t in self.gangs.sets[j])
        for o in self.gangs.roles[j]:
            name, wanted, up = self.index.roles[o], int(self.rules.role_need[o]), int(self.problem.role_ready[o])
            in_role = sum(self.count[t] for t in self.gangs.sets[j] if self.role[t] == o)
            waiting = [pod for pod in held if pod.role == name]
            if in_role + len(waiting) < wanted:
                exist = up + in_role + len(waiting)
                return _Finding("GangIncomplete", f"role {name}: {exist} of {up + wanted} members exist")
            if in_role < wanted:
                return self._waits_for(waiting, f"role {name}: {up + in_role} of {up + wanted} members may run; ")
        if free + len(held) < need:
            return _Finding("GangIncomplete", f"{ready + free + len(held)} of {ready + need} members exist")
        if free < need:
            return self._waits_for(held, f"{ready + free} of {ready + need} members may run; ")
        return None

    def _waits_for(self, held: Sequence[_HeldPod], before: str = "") -> _Finding:
        more = f" (and {len(held) - 1} more)" if len(held) > 1 else ""
        return _Finding(held[0].code, f"{before}{held[0].message}{more}", {"held": True})

    def _not_placeable(self, j: int) -> _Finding | None:
        """Too few members have an action that places them and a node that no predicate forbids."""
        sets = self.gangs.sets[j]
        closed = [t for t in sets if not self.removal.eligible[self.shape[t]]]
        if not closed:
            return None
        usable = {t: self.count[t] for t in sets if t not in closed}
        lacking = [o for o in self.gangs.roles[j] if self.gangs.in_role(usable, o) < self.rules.role_need[o]]
        if not lacking and sum(usable.values()) >= self.rules.need[j]:
            return None
        t = next((t for t in closed if not lacking or self.role[t] == lacking[0]), closed[0])
        return self._nowhere(t, named=len(sets) > 1)

    def _nowhere(self, t: int, named: bool) -> _Finding:
        """Why no node takes a pod of the set."""
        s = self.shape[t]
        who = self._who(t) if named else ""
        action = self._inactive[s]
        if action is not None:
            kind = "request-less pods" if action == "BackfillOff" else "pods with requests"
            listed = ", ".join(self.rules.policy.actions) or "none"
            needed = "backfill" if action == "BackfillOff" else "allocate"
            return _Finding(action, f"{who}only action {needed} places {kind}; the policy lists {listed}")
        nodes = self.removal.nodes
        if not nodes:
            return _Finding("Resources", f"{who}the cluster has no nodes")
        return _Finding("Predicates", f"{who}0 of {nodes} {_plural('node', nodes)} eligible: {self.removal.text(s)}")

    def _shortage(self, j: int, want: Want, ask: Ints, opening: str = "") -> _Finding:
        """Too few pods fit although nothing else is placed this cycle. `opening` replaces `needs 4 pods`."""
        who, want, ask = self._bottleneck(j, want, ask)
        if who or not opening:
            opening = f"needs {want.need} {'more ' if self.problem.job_ready[j] else ''}{_plural('pod', want.need)}"
        room, ground = self.alone, self.alone.ground(want.shapes)
        opening = f"{who}{opening}, {_fitting(room.gang(want), room.exact(want))}"
        text, plain = self.amounts.text, self.amounts.plain
        large = self._larger_than_any_node(want, ground)
        if large >= 0:
            asked = int(self.problem.request[want.shapes[0], large])
            asks = f"{'a pod asks' if want.need > 1 else 'asks'} {text(large, asked)}"
            clause = f"{who}{asks}, the largest eligible node has {plain(large, ground.allocatable[large])}"
            return _Finding("Resources", clause, self._shortest(large, asked, ground))
        on = f"on {ground.nodes} eligible {_plural('node', ground.nodes)}"
        on += "" if ground.nodes == self.removal.nodes else f" of {self.removal.nodes}"
        short = np.flatnonzero(ask > ground.free).tolist()
        if short:
            r = max(short, key=lambda r: float(ask[r]) / max(0.5, float(ground.free[r])))
            numbers = f"{plain(r, ask[r])} asked, {self._free(r, want, ground)} {on}"
            clause = f"{opening}; {self.index.resources[r]} is short: {numbers}"
            return _Finding("Resources", clause, self._shortest(r, int(ask[r]), ground))
        without = room.gang(want, coupled=False)
        rule = room.in_the_way(want) if without >= want.need else None
        if rule is not None:
            return _Finding(_code_of(rule), f"{opening}, {without} without {rule.source}", {"rule": rule.source})
        r = self._scarcest(room, want, ask)
        numbers = f"{text(r, ask[r])} asked, {self._free(r, want, ground)} {on}"
        pieces = f"at most {plain(r, ground.largest[r])} on one node"
        return _Finding("Fragmentation", f"{opening}; {numbers}, {pieces}", self._shortest(r, int(ask[r]), ground))

    def _free(self, r: int, want: Want, ground: Ground) -> str:
        """`3 free`, or `1 free and 2 being freed`: what victims and terminating pods still hold counts as free."""
        idle = int(self.idle[open_kinds(self.rules, want.shapes)[self.problem.node_kind], r].sum())
        coming = int(ground.free[r]) - idle
        plain = self.amounts.plain
        return f"{plain(r, idle)} free and {plain(r, coming)} being freed" if coming > 0 else f"{plain(r, idle)} free"

    def _bottleneck(self, j: int, want: Want, ask: Ints) -> tuple[str, Want, Ints]:
        """The role or pod set that by itself cannot be met, where there is one, else the gang."""
        if len(want.parts) == 1:
            return "", want, ask
        everyone = sum(part.count for part in want.parts) == want.need
        wanted = [(part, part.count) for part in want.parts if everyone]
        for o, need in want.roles:
            of_role = [part for part in want.parts if part.role == o]
            if len(of_role) == 1:
                wanted.append((of_role[0], need))
        for part, need in wanted:
            single = Want((replace(part, count=need),), need)
            if self.alone.gang(single) < need:
                alike = [t for t in self.gangs.sets[j] if self.shape[t] == part.shape]
                t = next(t for t in alike if part.role in (-1, self.role[t]))
                return self._who(t), single, need * self.problem.request[part.shape]
        return "", want, ask

    def _larger_than_any_node(self, want: Want, ground: Ground) -> int:
        """The resource of which one pod asks more than any eligible node has; -1 if none, or of several shapes."""
        over = self.problem.request[want.shapes[0]] > ground.allocatable
        return int(over.argmax()) if len(want.shapes) == 1 and over.any() else -1

    # -- competition ---------------------------------------------------------------------------------------------

    def _competition(self, j: int, want: Want, ask: Ints, fits: str, what: str) -> _Finding:
        """The gang fits alone and not beside the plan. `what`: start or grow; `fits` says what fits."""
        blocking = self._rule_beside(j, want, fits)
        if blocking is not None:
            return blocking
        rank, took = int(self.rules.rank[j]), self._who_took(want, ask)
        took = took[took != j]
        share = self._share(j, ask, took, fits)
        if share is not None:
            return share
        own_level = self.levels.name(what, rank, in_share=self.quota.at_share(int(self.problem.job_queue[j]), ask) < 0)
        lost_at = self._first_rank_without_room(want)
        if lost_at > rank and self.levels.first_open is not None:
            return self._unsolved(fits)
        if lost_at < rank:
            level = self.levels.name("start", lost_at, in_share=False)
            return self._lost(fits, took[self.rules.rank[took] <= lost_at], "outranked by", level)
        winners = took[self.rules.rank[took] <= rank]
        return self._lost(fits, winners if len(winners) else took, "passed over for", own_level)

    def _lost(self, fits: str, winners: Ints, how: str, level: str | None) -> _Finding:
        at = f" at level {level}" if level is not None else ""
        detail = {**self._displaced(winners), **self.levels.detail(level)}
        return _Finding("Lost", f"{fits}, {how} {self._names(winners)}{at}", detail)

    def _share(self, j: int, ask: Ints, took: Ints, fits: str) -> _Finding | None:
        """The queue is at its share, and those of other queues that took the room are within theirs."""
        q, deserved = int(self.problem.job_queue[j]), self.rules.deserved
        r = self.quota.at_share(q, ask)
        others = took[self.problem.job_queue[took] != q]
        queues = sorted(set(self.problem.job_queue[others].tolist()))
        if r < 0 or deserved is None or not queues or not self.quota.within_share(queues, r):
            return None
        plain = self.amounts.plain
        uses = f"uses {plain(r, self.quota.used[q, r])} of its share of {self.amounts.text(r, deserved[q, r])}"
        listed = f"{names([self.index.queues[k] for k in queues])} started {self._names(others)} within its share"
        clause = f"queue {self.index.queues[q]} {uses}, asks {plain(r, ask[r])} more; {fits}, but {listed}"
        return _Finding("QueueShare", clause, self._displaced(others))

    def _rule_beside(self, j: int, want: Want, fits: str) -> _Finding | None:
        """Resources would do beside the plan; a rule about pods that it places does not."""
        rule = self.beside.in_the_way(want) if self.beside.gang(want, coupled=False) >= want.need else None
        if rule is None:
            return None
        placed = self.competitors.of_shapes(touched(rule))
        placed = placed[placed != j]
        clause = f"{fits}, kept away from {self._names(placed)} by {rule.source}"
        return _Finding(_code_of(rule), clause, {"rule": rule.source, **self._displaced(placed)})

    def _who_took(self, want: Want, ask: Ints) -> Ints:
        """Jobs placed this cycle on nodes that the gang may use, in what it lacks; the highest and largest first."""
        short = np.flatnonzero(ask > self.beside.ground(want.shapes).free)
        if not len(short):
            short = np.array([self._scarcest(self.beside, want, ask)])
        return self.competitors.on_nodes_of(want.shapes, short)

    def _first_rank_without_room(self, want: Want) -> int:
        """The highest rank whose placements, with those above, leave too little room."""
        low, high = 0, len(self.rules.rank_names) - 1
        while low < high:
            middle = (low + high) // 2
            if self._room_up_to(middle).gang(want) < want.need:
                high = middle
            else:
                low = middle + 1
        return low

    def _room_up_to(self, rank: int) -> Room:
        """The nodes with what the plan places of this rank and above."""
        if rank not in self._up_to:
            plan = self.plan
            kept = self.rules.rank[self.problem.set_job[plan.pod_set]] <= rank
            self._up_to[rank] = self.alone.beside(Plan(plan.pod_set[kept], plan.node[kept], plan.count[kept]))
        return self._up_to[rank]

    # -- pods beyond the minimum ---------------------------------------------------------------------------------

    def _growth(self, j: int, t: int) -> _Finding:
        """Why one more pod of the set is not placed. `t`: the first of the job's sets with pods left, in task order."""
        s, q, sets = self.shape[t], int(self.problem.job_queue[j]), self.gangs.sets[j]
        if not self.removal.eligible[s]:
            return self._nowhere(t, named=len(sets) > 1)
        request = self.problem.request[s]
        if self.quota.refuses(q, request) is not None:
            # told with all that is left: one pod alone may hide how far the queue is from holding the job
            refusal = self.quota.refuses(q, (self.count[t] - self.placed[t]) * request)
            assert refusal is not None
            return _Finding(refusal.code, refusal.clause, self._displaced(self.competitors.in_queue(q)))
        one = Want((Part(s, -1, 1),), 1)
        if self.beside.gang(one) >= 1:
            kept = self._kept(one, t, beside=True)
            return kept if kept is not None else self._unsolved("one more pod fits beside the plan")
        grown = {u: self.placed[u] + (u == t) for u in sets}
        want = self.gangs.want(grown, sum(grown.values()))
        if self.alone.gang(want) < want.need:
            new = "new " if self.problem.job_ready[j] else ""
            opening = f"one more makes {want.need} {new}{_plural('pod', want.need)}"
            return self._shortage(j, want, self.gangs.ask(grown), opening)
        return self._competition(j, one, request, "one more pod fits alone", "grow")

    def _kept(self, want: Want, t: int, *, beside: bool) -> _Finding | None:
        """The gang, which fits else, is kept out by a reservation."""
        found = self.reserved.keeps_out(want, t, beside=beside)
        return None if found is None else _Finding("Reserved", *found)

    def _shapes_without_action(self) -> list[Found | None]:
        allocate, backfill = self.rules.policy.places(best_effort=False), self.rules.policy.places(best_effort=True)
        with_request: Found | None = None if allocate else "NoAction"
        without: Found | None = None if backfill else "BackfillOff"
        return [without if best_effort else with_request for best_effort in self.problem.shape_best_effort]

    def _unsolved(self, fits: str) -> _Finding:
        level = self.levels.first_open
        if level is None and self.levels.levels and len(self.plan.victim):
            given = "but only on room that pods give up for others; what these leave of it is for all in the next cycle"
            return _Finding("Unsolved", f"{fits}, {given}")
        detail = {} if level is None else self.levels.detail(level.name)
        return _Finding("Unsolved", f"{fits}, {self.levels.why_unsolved()}", detail)

    # -- words and numbers ---------------------------------------------------------------------------------------

    def _who(self, t: int) -> str:
        """The pods of a set, in front of a clause."""
        role = self.role[t]
        return f"role {self.index.roles[role]}: " if role >= 0 else f"pod {self.index.set_pods[t][0]}: "

    def _scarcest(self, room: Room, want: Want, ask: Ints) -> int:
        """The resource that keeps most pods out where the sums would do."""
        if len(want.shapes) == 1:
            return room.scarcest(want.shapes[0])
        return int((ask / np.maximum(room.ground(want.shapes).free, 0.5)).argmax())

    def _shortest(self, r: int, asked: int, ground: Ground) -> dict[str, Any]:
        plain = self.amounts.plain
        return {
            "shortest": {
                "resource": self.index.resources[r],
                "asked": plain(r, asked),
                "free": plain(r, ground.free[r]),
                "largestNode": plain(r, ground.largest[r]),
            }
        }

    def _names(self, jobs: Ints) -> str:
        return names([self.index.jobs[k] for k in jobs[:LISTED].tolist()], len(jobs)) or "its own pods"

    def _displaced(self, jobs: Ints) -> dict[str, Any]:
        return {"displacedBy": [self._rival(k) for k in jobs[:LISTED].tolist()]}

    def _rival(self, k: int) -> dict[str, Any]:
        if k not in self._rivals:
            self._rivals[k] = {
                "podGroup": self.index.jobs[k],
                "queue": self.index.queues[int(self.problem.job_queue[k])],
                "priority": int(self.problem.job_priority[k]),
                "pods": int(self.competitors.pods[k]),
            }
        return self._rivals[k]

    def _detail(self, j: int, needs: Mapping[int, int], held: Sequence[_HeldPod], found: _Finding) -> dict[str, Any]:
        detail: dict[str, Any] = {"podSets": [self._pod_set(t, needs.get(t, 0)) for t in self.gangs.sets[j]]}
        asks = self.amounts.mapping(self.gangs.ask(needs)) if needs else {}
        detail["queue"] = {**self.quota.numbers(int(self.problem.job_queue[j])), "asks": asks}
        if held:
            detail["heldPods"] = len(held)
        return {**detail, **found.detail}

    def _pod_set(self, t: int, needs: int) -> dict[str, Any]:
        """`fitsAlone` and `fitsNow` are counted up to the need where rules couple nodes."""
        s, role = self.shape[t], self.role[t]
        if s not in self._pod_sets:
            self._pod_sets[s] = {
                "request": self.amounts.mapping(self.problem.request[s]),
                "nodesEligible": self.removal.eligible[s],
                "removed": self.removal.once(s),
                "removedEach": self.removal.each(s),
            }
        return {
            "role": self.index.roles[role] if role >= 0 else None,
            "count": self.count[t],
            "bound": self.placed[t] - self.waiting.per_set[t],
            "nominated": self.waiting.per_set[t],
            "needs": needs,
            "fitsNow": self.beside.pods(s, max(1, needs)),
            "fitsAlone": self.alone.pods(s, max(1, needs)),
            **self._pod_sets[s],
        }


def _code_of(rule: DomainRule) -> Found:
    """A rule's source opens with the code of its predicate."""
    if rule.source.startswith("InterPodAffinity:"):
        return "InterPodAffinity"
    return "TopologySpread" if rule.source.startswith("TopologySpread:") else "DomainRule"


def _fitting(fits: int, exact: bool) -> str:
    if not fits:
        return "none fits"
    if exact:
        return f"at most {fits} {'fits' if fits == 1 else 'fit'} at once"
    return f"room for {fits} was found"


def _plural(word: str, number: int) -> str:
    return word if number == 1 else f"{word}s"
