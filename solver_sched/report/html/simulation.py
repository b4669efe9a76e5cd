"""The page of a simulation: runs side by side over virtual time. Reads the Simulation document alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from solver_sched.report.html.parts import Card, Figure, Key, Page, Part, Section, Swatch
from solver_sched.report.html.plots import DASHES, SERIES, Line, Span, bars, gantt, lines
from solver_sched.report.layout import Note, Table
from solver_sched.report.tables import count, counted

MOST_ROWS = 40
"""Rows of a Gantt chart."""
MOST_QUEUES, MOST_TIMELINES = 30, 6
GREY = 6
"""Of the colours of series the one without a hue."""
SWATCHES: Sequence[Swatch] = ("line", "dashes", "dots", "dashdots")
PARTS = ("mean", "p50", "p95", "max")
UNITS = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (120, 60, "minutes"))
"""Length (s) from which a time axis has the unit, its seconds, its name."""


def simulation(document: Mapping[str, Any]) -> Page:
    """Summary, utilisation, waiting, fairness, evictions, and a Gantt chart of each run."""
    trace, runs = document["trace"], _told_apart(document["runs"])
    about = ", ".join(
        counted(trace[key], one, many)
        for key, one, many in (("jobs", "job", "jobs"), ("pods", "pod", "pods"), ("nodes", "node", "nodes"))
    )
    lead = [
        Note(f"{trace['source']}: {about}, {counted(len(trace['queues']), 'queue', 'queues')}"),
        Note(f"seed {trace['seed']}, a cycle every {trace['period']} s where something changed"),
        *([Note("stopped before its end: what follows is partial", "warning")] if document.get("partial") else ()),
        *(Note(f"note: {note}", "warning") for note in document.get("notes") or ()),
    ]
    cards = [
        Card(
            run["name"],
            span(run["summary"]["wait"]["mean"]),
            f"mean wait; {count(run['summary']['jobs']['ended'])} jobs ended",
        )
        for run in runs
    ]
    parts = [
        Section("Summary", [summary(runs)] if runs else []),
        Section("Utilisation", [*_utilisation(runs), *_counts(runs)]),
        Section(
            "Waiting", [*_waiting(runs), *_by("queues", "name", "QUEUE", runs), *_by("sizes", "pods", "PODS", runs)]
        ),
        Section("Queues", [*_fairness(runs), *_shares_over_time(runs)]),
        Section("Jobs", [part for run in runs for part in _gantt(run)]),
    ]
    return Page("Simulation", lead, cards, [section for section in parts if section.parts])


def _told_apart(runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Runs of one scheduler that differ by their seed say so in their names."""
    seeds = Counter(run["name"] for run in runs)
    return [{**run, "name": f"{run['name']}, seed {run['seed']}"} if seeds[run["name"]] > 1 else run for run in runs]


def summary(runs: Sequence[Mapping[str, Any]]) -> Table:
    """One row per measure, one column per run."""
    rows = [(name, *values) for name, *values in _measures([run["summary"] for run in runs])]
    return Table("Measures", ("MEASURE", *(run["name"] for run in runs)), rows)


def _measures(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    yield ("makespan", *(span(one["makespan"]) for one in found))
    for key in ("ended", "failed", "left"):
        yield (f"jobs {key}", *(count(one["jobs"][key]) for one in found))
    for key, words, form in TIMES:
        for part in PARTS:
            yield (f"{words}, {part}", *(form(one[key].get(part)) for one in found))
    for name in dict.fromkeys(name for one in found for name in one["utilisation"]):
        yield (f"{name} utilisation", *(percent(one["utilisation"].get(name)) for one in found))
    yield ("fairness (Jain)", *(_ratio(one.get("jain")) for one in found))
    yield ("evictions", *(count(one["evictions"]) for one in found))
    yield ("work lost", *(f"{span(one['lost']['podSeconds'])} of pods" for one in found))
    yield ("cycles", *(count(one["cycles"]) for one in found))
    for part in PARTS:
        yield (f"cycle time, {part}", *(_seconds(one["cycle"].get(part)) for one in found))


def _utilisation(runs: Sequence[Mapping[str, Any]]) -> list[Part]:
    """A plot for each resource, a line for each run."""
    out: list[Part] = []
    for name in dict.fromkeys(name for run in runs for name in run["series"]["utilisation"]):
        mean = ", ".join(f"{run['name']} {percent(run['summary']['utilisation'].get(name))}" for run in runs)
        out += _over_time(
            f"{name} in use over time",
            f"Part of all {name} that is in use. On average: {mean}.",
            "in use",
            {run["name"]: (run["series"]["time"], run["series"]["utilisation"].get(name) or []) for run in runs},
            percent=True,
        )
    return out


def _counts(runs: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Pods that wait, pods that run, evictions so far."""
    peak = {run["name"]: max(run["series"]["pending"], default=0) for run in runs}
    most = ", ".join(f"{name} {count(round(value))}" for name, value in peak.items())
    evictions = ", ".join(f"{run['name']} {count(run['summary']['evictions'])}" for run in runs)
    told = (
        ("pending", "Pods pending over time", f"Pods that wait. At most: {most}.", "pods"),
        ("running", "Pods running over time", "Pods that run.", "pods"),
        ("evictions", "Evictions over time", f"Evictions since the start. In all: {evictions}.", "evictions"),
    )
    return [
        part
        for key, title, text, unit in told
        for part in _over_time(
            title, text, unit, {run["name"]: (run["series"]["time"], run["series"].get(key) or []) for run in runs}
        )
    ]


def _over_time(
    title: str,
    text: str,
    unit: str,
    found: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    percent: bool = False,
) -> list[Part]:
    """A line for each name over its own times (s)."""
    found = {name: pair for name, pair in found.items() if pair[1]}
    if not found:
        return []
    scale, word = _unit(max(time for times, _ in found.values() for time in times))
    drawing = lines(
        [
            Line(name, [t / scale for t in times], values, at, at)
            for at, (name, (times, values)) in enumerate(found.items())
        ],
        (title, text),
        x=f"{word} since the start",
        y=unit,
        percent=percent,
        step=True,
    )
    return [Figure(title, text, drawing, _merged(title, found, _three if percent else _plain), _legend(found))]


def _merged(
    title: str, found: Mapping[str, tuple[Sequence[float], Sequence[float]]], form: Callable[[float | None], str]
) -> Table:
    """One row per time, one column per name."""
    at = {name: dict(zip(times, values, strict=False)) for name, (times, values) in found.items()}
    times = sorted({time for times, _ in found.values() for time in times})
    rows = [(_plain(time), *(form(values.get(time)) for values in at.values())) for time in times]
    return Table(title, ("SECONDS", *found), rows)


def _waiting(runs: Sequence[Mapping[str, Any]]) -> list[Part]:
    found = {
        run["name"]: (run["waiting"]["seconds"], run["waiting"]["share"]) for run in runs if run["waiting"]["seconds"]
    }
    if not found:
        return []
    scale, word = _unit(max(max(seconds) for seconds, _ in found.values()))
    title = "Waiting times"
    half = ", ".join(
        f"{run['name']} {span(run['summary']['wait']['p50'])}, {span(run['summary']['wait']['p95'])}" for run in runs
    )
    text = f"Which part of the jobs that started had waited at most so long. Half of them, and 95 %: {half}."
    drawing = lines(
        [
            Line(name, [s / scale for s in seconds], shares, at, at)
            for at, (name, (seconds, shares)) in enumerate(found.items())
        ],
        (title, text),
        x=f"{word} of waiting",
        y="of jobs",
        percent=True,
        step=True,
    )
    rows = [
        (name, _plain(s), _three(share))
        for name, (seconds, shares) in found.items()
        for s, share in zip(seconds, shares, strict=False)
    ]
    return [Figure(title, text, drawing, Table(title, ("RUN", "SECONDS", "SHARE OF JOBS"), rows), _legend(found))]


def _by(key: str, name: str, head: str, runs: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Waiting times by queue, or by size."""
    rows = [
        (
            str(row[name]),
            run["name"],
            count(row["jobs"]),
            *(span(row["wait"].get(part)) for part in PARTS),
            *((_ratio(row["slowdown"].get("mean")),) if "slowdown" in row else ()),
        )
        for run in runs
        for row in run[key]
    ]
    order = list(dict.fromkeys(row[0] for row in rows))
    rows.sort(key=lambda row: order.index(row[0]))
    if not rows:
        return []
    header = (
        head,
        "RUN",
        "JOBS",
        *(f"WAIT {part}" for part in PARTS),
        *(("SLOWDOWN mean",) if len(rows[0]) > 7 else ()),
    )
    return [Table(f"Waiting times by {'queue' if key == 'queues' else 'size of job'}", header, rows)]


def _fairness(runs: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Mean share of each queue against its mean deserved share."""
    shares = {run["name"]: {row["name"]: row for row in run["queues"]} for run in runs}
    names = list(dict.fromkeys(row["name"] for run in runs for row in run["queues"]))
    if not names:
        return []

    def largest(name: str) -> float:
        return max(float((queues.get(name) or {}).get("share") or 0) for queues in shares.values())

    shown = sorted(sorted(names, key=lambda name: (-largest(name), name))[: max(4, MOST_QUEUES // len(runs))])
    title = "Queue share against deserved"
    text = "Mean dominant share of each queue over the run, and what it deserved on average (in the first run)."
    if len(shown) < len(names):
        text += f" {len(names) - len(shown)} of {len(names)} queues, with the smallest shares, are left out."
    first = next(iter(shares.values()))
    drawing = bars(
        shown,
        [[float((queues.get(name) or {}).get("share") or 0) for name in shown] for queues in shares.values()],
        [(first.get(name) or {}).get("deserved") for name in shown],
        (title, text),
        x="of the cluster",
    )
    rows = [
        (name, run, count(row["jobs"]), _three(row.get("share")), _three(row.get("deserved")))
        for name in names
        for run, queues in shares.items()
        if (row := queues.get(name)) is not None
    ]
    legend = [*(Key(name, f"c{at % SERIES}") for at, name in enumerate(shares)), Key("deserved", "ink", "mark")]
    return [Figure(title, text, drawing, Table("Queues", ("QUEUE", "RUN", "JOBS", "SHARE", "DESERVED"), rows), legend)]


def _shares_over_time(runs: Sequence[Mapping[str, Any]]) -> list[Part]:
    """For each of the largest queues its share in every run, and what it deserved."""
    out: list[Part] = []
    queues = {run["name"]: run["series"].get("queues") or {} for run in runs}
    times = {run["name"]: run["series"]["time"] for run in runs if run["series"]["time"]}
    means: Counter[str] = Counter()
    for run in runs:
        means.update({row["name"]: float(row.get("share") or 0) for row in run["queues"]})
    names = dict.fromkeys(name for found in queues.values() for name in found)
    shown = sorted(names, key=lambda name: (-means[name], name))[:MOST_TIMELINES]
    for name in sorted(shown):
        found = {
            f"{run}{' deserved' if key == 'deserved' else ''}": (times[run], queues[run][name][key])
            for run in times
            if name in queues[run]
            for key in ("share", "deserved")
        }
        if not found:
            continue
        scale, word = _unit(max(time for at, _ in found.values() for time in at))
        title = f"Share of queue {name} over time"
        text = "Its dominant share, and what it deserved (in the first run)."
        if len(shown) < len(names):
            text += f" One of the {len(shown)} queues with the largest shares of {len(names)}."
        first = next(label for label in found if label.endswith(" deserved"))
        lines_of = [first, *(label for label in found if not label.endswith(" deserved"))]
        series = [
            Line(
                label,
                [t / scale for t in found[label][0]],
                found[label][1],
                *((GREY, 1) if label == first else (at, 0)),
            )
            for at, label in enumerate(lines_of, -1)
        ]
        drawing = lines(series, (title, text), x=f"{word} since the start", y="of the cluster", percent=True, step=True)
        legend = [
            *(Key(label, f"c{at % SERIES}", "line") for at, label in enumerate(lines_of[1:])),
            Key("deserved", f"c{GREY}", "dashes"),
        ]
        out.append(Figure(title, text, drawing, _merged(title, found, _three), legend))
    return out


def _gantt(run: Mapping[str, Any]) -> list[Part]:
    jobs = run["jobs"]
    if not jobs:
        return []
    end = max(
        run["summary"]["makespan"] or 0,
        *(time for job in jobs for time in (job["submitted"], job["started"], job["ended"]) if time is not None),
    )
    gangs = [job for job in jobs if job["pods"] > 1] or jobs
    shown = sorted(gangs, key=lambda job: -_work(job, end))[:MOST_ROWS]
    shown.sort(key=lambda job: (job["submitted"], job["name"]))
    held = [name for name, _ in sorted(_work_of_queues(shown, end).items(), key=lambda item: (-item[1], item[0]))]
    colour = {name: f"c{at}" for at, name in enumerate(held[: SERIES - 2])}
    scale, word = _unit(end)
    title = f"Gangs over time, {run['name']}"
    text = (
        "A thin line while a gang waits, a bar from its first start to its end; × is how often pods of it were evicted."
    )
    if len(shown) < len(jobs):
        text += f" The {len(shown)} with the most work of {counted(len(jobs), 'job', 'jobs')}."

    def scaled(time: float | None) -> float | None:
        return None if time is None else time / scale

    spans = [
        Span(
            f"{job['name']} ({job['pods']}" + (f", evicted {job['evictions']}×)" if job["evictions"] else ")"),
            job["submitted"] / scale,
            scaled(job["started"]),
            scaled(job["ended"]),
            colour.get(job["queue"], "dim"),
        )
        for job in shown
    ]
    legend = [
        *(Key(name, key) for name, key in colour.items()),
        *([Key("others", "dim")] if len(held) > len(colour) else ()),
        Key("waits", "dim", "thin"),
    ]
    rows = [
        (
            job["name"],
            job["queue"],
            count(job["pods"]),
            _plain(job["submitted"]),
            _plain(job["started"]),
            _plain(job["ended"]),
            count(job["evictions"]),
        )
        for job in jobs
    ]
    table = Table(
        "Jobs (seconds since the start)", ("JOB", "QUEUE", "PODS", "SUBMITTED", "STARTED", "ENDED", "EVICTIONS"), rows
    )
    return [Figure(title, text, gantt(spans, end / scale, (title, text), x=f"{word} since the start"), table, legend)]


def _work(job: Mapping[str, Any], end: float) -> float:
    """Pod-seconds, of one that never started those that it waited."""
    begin = job["submitted"] if job["started"] is None else job["started"]
    return float(job["pods"] * max((end if job["ended"] is None else job["ended"]) - begin, 0))


def _work_of_queues(jobs: Iterable[Mapping[str, Any]], end: float) -> dict[str, float]:
    out: dict[str, float] = {}
    for job in jobs:
        out[job["queue"]] = out.get(job["queue"], 0) + _work(job, end)
    return out


def _legend(names: Iterable[str]) -> list[Key]:
    return [Key(name, f"c{at % SERIES}", SWATCHES[at % len(DASHES)]) for at, name in enumerate(names)]


def _unit(longest: float) -> tuple[int, str]:
    return next(((seconds, name) for least, seconds, name in UNITS if longest >= least), (1, "seconds"))


def span(seconds: float | None) -> str:
    """`45 s`, `12.5 min`, `3.2 h`, `2.1 d`; `-` for None."""
    if seconds is None:
        return "-"
    for least, unit, name in ((2 * 86400, 86400, "d"), (2 * 3600, 3600, "h"), (120, 60, "min")):
        if seconds >= least:
            return f"{seconds / unit:.1f} {name}"
    return f"{_plain(round(seconds, 1))} s"


def percent(fraction: float | None) -> str:
    """`71.2 %`; `-` for None."""
    return "-" if fraction is None else f"{100 * fraction:.1f} %"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _three(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}".rstrip("0").rstrip(".")


TIMES: Sequence[tuple[str, str, Callable[[float | None], str]]] = (
    ("wait", "waiting time", span),
    ("completion", "completion time", span),
    ("slowdown", "bounded slowdown", _ratio),
)
