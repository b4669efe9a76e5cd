"""`solver-sched run`: the service in a cluster. Here its parts are put together, and taken apart in the right order."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from solver_sched.cli.embedded import WORKLOAD, play
from solver_sched.cli.errors import BAD_INPUT, said
from solver_sched.cli.inputs import NO_CLUSTER
from solver_sched.cli.options import duration
from solver_sched.errors import InputError

if TYPE_CHECKING:
    from solver_sched.cluster.api import Api
    from solver_sched.cluster.cache import ClusterCache
    from solver_sched.cluster.events import Events
    from solver_sched.conditions import Shown
    from solver_sched.leader import Alone, Durations, Leader
    from solver_sched.snapshot import InputProblem

DRAIN_SECONDS = 8.0
"""How long binds in flight may take to end after SIGTERM; Kubernetes kills after 30 s by default."""
WORKERS = 16

INERT = {
    "ca-cert-file": "probes and metrics are served without TLS",
    "cache-dump-dir": "see --debug-address",
    "cache-dumper": "see --debug-address",
    "csi-storage": "volumes are always read",
    "disable-default-scheduler-config": "a policy that cannot be read is refused",
    "enable-healthz": "always on",
    "enable-pprof": "there is none",
    "feature-gates": "there are none",
    "gate-removal-worker-num": "gates are not removed",
    "ignored-provisioners": "volumes are always read",
    "lock-object-namespace": "see --leader-elect-resource-namespace",
    "log-flush-frequency": "lines are not held back",
    "minimum-feasible-nodes": "all nodes are looked at",
    "minimum-percentage-nodes-to-find": "all nodes are looked at",
    "node-selector": "see `nodeSelector` of the pods",
    "node-worker-threads": "there are none",
    "percentage-nodes-to-find": "all nodes are looked at",
    "plugins-dir": "plugins are part of the package",
    "priority-class": "priority classes are always read",
    "resync-period": "watches are followed, not repeated",
    "scheduler-sharding-mode": "there are no shards",
    "scheduler-sharding-name": "there are no shards",
    "tls-cert-file": "probes and metrics are served without TLS",
    "tls-private-key-file": "probes and metrics are served without TLS",
}
"""Flags of kube-batch and Volcano that are taken and change nothing, and why."""

_log = logging.getLogger("solver_sched.run")


def run(
    context_: typer.Context,
    kubeconfig: Annotated[Path | None, typer.Option(help="How to reach the cluster, outside of it.")] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    master: Annotated[str, typer.Option(help="Address of the API server, instead of the kubeconfig's.")] = "",
    scheduler_name: Annotated[
        list[str] | None,
        typer.Option(help="Decide on pods of this schedulerName. Repeatable.", show_default="solver-sched"),
    ] = None,
    scheduler_conf: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="A policy; a file is read again when it changes.")
    ] = None,
    schedule_period: Annotated[
        float, typer.Option(metavar="DURATION", parser=duration, help="Time between the starts of two cycles.")
    ] = "1s",  # type: ignore[assignment]
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="DURATION", parser=duration, help="Of a cycle.", show_default="the policy's, or 5s"),
    ] = None,
    default_queue: Annotated[
        str, typer.Option(help="Queue that is created where it is missing; empty: none is.")
    ] = "default",
    leader_elect: Annotated[
        bool | None,
        typer.Option(
            "--leader-elect/--no-leader-elect",
            help="Of several replicas one decides, by a Lease.",
            show_default="on inside a cluster",
        ),
    ] = None,
    leader_elect_lease_duration: Annotated[
        float, typer.Option(metavar="DURATION", parser=duration, help="After so long without renewal another may lead.")
    ] = "15s",  # type: ignore[assignment]
    leader_elect_renew_deadline: Annotated[
        float, typer.Option(metavar="DURATION", parser=duration, help="A leader that cannot renew for so long stops.")
    ] = "10s",  # type: ignore[assignment]
    leader_elect_retry_period: Annotated[
        float, typer.Option(metavar="DURATION", parser=duration, help="Time between two tries.")
    ] = "2s",  # type: ignore[assignment]
    leader_elect_resource_name: Annotated[
        str, typer.Option(help="Name of the Lease.", show_default="the first scheduler name")
    ] = "",
    leader_elect_resource_namespace: Annotated[
        str, typer.Option(help="Where the Lease is.", show_default="the pod's, or kube-system")
    ] = "",
    listen_address: Annotated[str, typer.Option(help="Of /metrics.")] = ":8080",
    healthz_address: Annotated[str, typer.Option(help="Of /livez, /readyz and /healthz.")] = ":11251",
    enable_metrics: Annotated[
        bool, typer.Option("--enable-metrics/--no-enable-metrics", help="Serve /metrics.")
    ] = True,
    debug_address: Annotated[
        str, typer.Option(help="Loopback address of /snapshot and /plan of the last cycle; empty: not served.")
    ] = "",
    kube_api_qps: Annotated[float, typer.Option(help="Binds and evictions a second; 0: no limit.")] = 2000.0,
    kube_api_burst: Annotated[int, typer.Option(help="Binds and evictions at once.")] = 2000,
    quota_reason: Annotated[
        bool,
        typer.Option(
            "--quota-reason/--no-quota-reason",
            help="Pods that wait for quota alone get the reason QuotaExceeded: no autoscaler adds nodes for it.",
        ),
    ] = True,
    resource_sync_timeout: Annotated[
        float, typer.Option(metavar="DURATION", parser=duration, help="For the first lists.")
    ] = "60s",  # type: ignore[assignment]
    dump_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for the snapshots of the last cycles that failed, or whose plan was refused."),
    ] = None,
    embedded: Annotated[
        bool,
        typer.Option("--embedded", help="On a cluster in this process, in virtual time: to try it and to watch it."),
    ] = False,
    workload: Annotated[str, typer.Option(metavar="SPEC", help="Of the embedded cluster, see `simulate`.")] = WORKLOAD,
    seed: Annotated[int, typer.Option(min=0, help="Of the workload.")] = 0,
    speed: Annotated[float, typer.Option(min=0.001, max=1e9, help="Virtual seconds in one second of ours.")] = 120.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide, log and serve /plan; write nothing.")] = False,
    log_format: Annotated[str | None, typer.Option(help="json or text.", show_default="text on a terminal")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Schedule the pods of a cluster that name this scheduler: the service.

    Exit code 0 after SIGTERM or SIGINT; 2 if it cannot begin.
    """
    from solver_sched import logs
    from solver_sched.cluster.api import Api, in_pod
    from solver_sched.cluster.binder import Binder
    from solver_sched.cluster.cache import ClusterCache
    from solver_sched.cluster.events import Events
    from solver_sched.cluster.live import configured
    from solver_sched.cluster.rate import TokenBucket
    from solver_sched.cluster.status import StatusWriter
    from solver_sched.cluster.watch import Watches
    from solver_sched.leader import Durations
    from solver_sched.metrics import Metrics
    from solver_sched.model.process import shut_down, warm_up
    from solver_sched.policy.watched import WatchedPolicy
    from solver_sched.scheduler import Scheduler, Settings
    from solver_sched.server import Server, debug_pages, health_pages, metrics_pages

    _inert(context_)
    if embedded:
        if kubeconfig is not None or context is not None or master:
            raise typer.BadParameter(
                "reads no cluster: leave --kubeconfig, --context and --master out", param_hint="--embedded"
            )
        logs.configure(log_format, "error" if sys.stdout.isatty() else log_level)  # type: ignore[arg-type]  # checked there
        play(workload, seed=seed, policy=scheduler_conf, speed=speed, period=schedule_period)
        return
    if kubeconfig is None and not master and not configured():
        raise InputError(f"{NO_CLUSTER}: give --kubeconfig FILE, or --embedded to try it without a cluster")
    logs.configure(log_format, log_level)  # type: ignore[arg-type]  # checked there
    names = tuple(scheduler_name or ("solver-sched",))
    metrics = Metrics()
    policy = WatchedPolicy(scheduler_conf, metrics.policy_reloaded)
    inside = kubeconfig is None and context is None and in_pod()

    def connection(connections: int, agent: str = "solver-sched") -> Api:
        api = Api.load(kubeconfig, context, master=master, connections=connections, agent=agent)
        api.seen = metrics.api
        return api

    stop = threading.Event()
    with ExitStack() as stack:
        durations = Durations(leader_elect_lease_duration, leader_elect_renew_deadline, leader_elect_retry_period)
        lease = leader_elect_resource_name or names[0]
        namespace = leader_elect_resource_namespace or _own_namespace()
        elected = inside if leader_elect is None else leader_elect
        leader = _candidate(connection, lease, namespace, durations, elected=elected and not dry_run)
        cache = ClusterCache(names)

        def may_send() -> bool:
            """What was decided before another one led is void, even if this one leads again."""
            return leader.may_send(scheduler.term)

        hands_api = connection(WORKERS + 8)
        slow = TokenBucket(kube_api_qps / 4, kube_api_burst / 4)
        events = Events(hands_api, bucket=slow, raw=cache.raw, may_send=may_send)
        binder = Binder(
            hands_api,
            cache,
            qps=kube_api_qps,
            burst=kube_api_burst,
            may_send=may_send,
            events=events,
            told=metrics.decision,
            dry_run=dry_run,
            workers=WORKERS,
        )
        events.behind(binder.lane)
        status = StatusWriter(hands_api, cache, bucket=slow, ahead=binder.lane, may_send=may_send, dry_run=dry_run)
        watches = Watches(connection(64), cache, relisted=metrics.relist)

        def show(shown: Shown) -> None:
            status.want([*shown.pods(), *shown.groups, *shown.queues()])
            if not dry_run:
                for event in shown.events():
                    events.tell(event)

        scheduler = Scheduler(
            cache,
            binder,
            policy,
            Settings(schedule_period, time_limit, quota_reason, dump_dir),
            metrics,
            show=show,
            complain=(lambda _: None) if dry_run else _complaints(cache, events),
            term=lambda: 0 if stop.is_set() else leader.term,
        )

        def exposition(accept: str) -> tuple[str, bytes]:
            metrics.now(cache.counts(), cache.lag(), cache.states(), events.dropped)
            return metrics.exposition(accept)

        def in_step() -> str:
            missing = watches.missing()
            return f"waiting for {', '.join(missing)}" if missing else ""

        stack.enter_context(
            Server("--healthz-address", healthz_address, health_pages({"loop": scheduler.stuck}, {"caches": in_step}))
        )
        if enable_metrics:
            stack.enter_context(Server("--listen-address", listen_address, metrics_pages(exposition)))
        if debug_address:
            pages = debug_pages(scheduler.last_snapshot, scheduler.last_plan)
            stack.enter_context(Server("--debug-address", debug_address, pages, loopback=True))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        leader.on_change(metrics.leader)
        leader.on_change(lambda leads: status.begin() if leads else None)
        leader.on_change(lambda _: cache.wake())
        watches.start()
        warm_up()  # the solver's imports run while the first lists come in
        _log.info("waiting for the first lists", extra={"schedulerNames": list(names), "policy": policy.policy.name})
        until = time.monotonic() + resource_sync_timeout
        while not stop.is_set() and not watches.wait_synced(0.5):
            scheduler.beat = time.monotonic()
            if time.monotonic() > until:
                _log.warning("not in step yet: %s", in_step())
                until += resource_sync_timeout
        leader.start()
        if default_queue and not dry_run and leader.wait_for_lead(stop):
            _default_queue(hands_api, default_queue)
        scheduler.run(stop, leader.wait_for_lead)
        _log.info("ending: no new cycle", extra={"inFlight": binder.in_flight})
        binder.drain(DRAIN_SECONDS)
        status.drain(2.0)
        events.drain(2.0)
        for part in (status, events, binder, watches, leader):  # the lead is given up when nothing can be sent any more
            part.stop()
        shut_down()
    _log.info("ended")


def _inert(context: typer.Context) -> None:
    """Warn of flags that change nothing; refuse those that nobody knows."""
    left = list(context.args)
    while left:
        flag = left.pop(0)
        name = flag.removeprefix("--").partition("=")[0]
        if not flag.startswith("--") or name not in INERT:
            raise typer.BadParameter(f"no such option: {flag}")
        said(f"warning: --{name} changes nothing here: {INERT[name]}", BAD_INPUT)
        if "=" not in flag and left and not left[0].startswith("-"):
            left.pop(0)


def _candidate(
    connection: Callable[[int, str], Api], lease: str, namespace: str, durations: Durations, *, elected: bool
) -> Leader | Alone:
    from solver_sched.leader import AGENT, Alone, Leader

    if not elected:
        return Alone()
    return Leader(connection(2, AGENT), lease, namespace, durations=durations)


def _own_namespace() -> str:
    from solver_sched.cluster.live import OWN_NAMESPACE

    try:
        return OWN_NAMESPACE.read_text().strip() or "kube-system"
    except OSError:
        return "kube-system"


def _default_queue(api: Api, name: str) -> None:
    from solver_sched.cluster.api import ApiError
    from solver_sched.cluster.status import ensure_default_queue

    try:
        for version in ensure_default_queue(api, name):
            _log.info("queue created", extra={"queue": name, "version": version})
    except ApiError as wrong:
        _log.warning("the queue %s could not be created: %s", name, wrong)


def _complaints(cache: ClusterCache, events: Events) -> Callable[[InputProblem], None]:
    """An event on every object that cannot be used."""
    from solver_sched.cluster.events import Event, Ref, shortened

    def complain(problem: InputProblem) -> None:
        kind, _, key = problem.object.partition(" ")
        version = cache.served(kind, key) if key else ""
        if version:
            namespace, _, name = key.rpartition("/")
            note = shortened(": ".join(part for part in (problem.field, problem.message) if part))
            events.tell(Event(Ref(version, kind, namespace, name), "Invalid", "Reading", note, "Warning"))

    return complain
