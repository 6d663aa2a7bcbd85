"""Lineage: from the data over partition, runs and clusters to registered models, with what made them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedflow.report.cells import label
from fedflow.report.run import Run

Recorded = Mapping[tuple[str, str, str, str], Mapping[str, Any]]  # of `recorded_runs`
UI = "http://127.0.0.1:5000"  # where `fedflow ui` is by default
QUERY = "?workflowType=machine_learning"  # without it, MLflow shows the page of a language model's run


@dataclass(frozen=True)
class Step:
    """A link of the chain: its kind, name, digest and a note."""

    kind: str
    name: str
    digest: str = ""
    note: str = ""


@dataclass(frozen=True)
class Origin:
    """Where one run comes from."""

    variant: str
    label: str
    seed: int
    facts: Mapping[str, Any]  # empty if it is not in the record

    @property
    def page(self) -> str:
        """The run's page while `fedflow ui` runs."""
        return f"{UI}/#/experiments/{self.facts['experiment_id']}/runs/{self.facts['run_id']}{QUERY}"


@dataclass(frozen=True)
class Lineage:
    steps: list[Step]
    origins: list[Origin]

    @property
    def recorded(self) -> bool:
        return any(origin.facts for origin in self.origins)


def lineage(methods: Mapping[str, Sequence[Run]], recorded: Recorded) -> Lineage:
    """The chain of one partition."""
    runs = [run for own in methods.values() for run in own]
    first = runs[0].metrics
    origins = [
        Origin(run.variant, label([run]), run.seed, recorded.get(_key(run), {}))
        for own in methods.values()
        for run in own
    ]
    known = [origin.facts for origin in origins if origin.facts]
    counted = f"{len(runs)} run{'s' * (len(runs) > 1)} of {_of(len(methods), 'method')}"
    steps = [
        Step("Data", first["dataset"], first["data_hash"]),
        Step("Partition", first["partition"], first["partition_hash"], _of(first["clients"], "client")),
        Step("Runs", counted, "", _made(known)),
    ]
    if found := sum(bool(run.history) for run in runs):
        note = f"{_of(len({facts['clusters'] for facts in known} - {''}), 'different assignment')} recorded"
        steps.append(Step("Clusters", f"of {_of(found, 'run')}", "", note if known else ""))
    if models := sum(len(facts["models"]) for facts in known):
        steps.append(Step("Models", _of(models, "registered version")))
    return Lineage(steps, origins)


def made(recorded: Recorded, runs: Sequence[Run]) -> str:
    """When, from which commit, by which version and by whom the shown runs were made; empty if unknown."""
    return _made([facts for run in runs if (facts := recorded.get(_key(run)))])


def _key(run: Run) -> tuple[str, str, str, str]:
    return run.partition, run.method, str(run.seed), run.settings


def _made(known: Sequence[Mapping[str, Any]]) -> str:
    if not known:
        return ""
    ended = sorted(facts["ended"] for facts in known)
    when = ended[0] if ended[0] == ended[-1] else f"{ended[0]} to {ended[-1]}"
    changed = {facts["commit"]: " with changes" * facts["changed"] for facts in known}
    commits = [f"{commit}{changed[commit]}" for commit in sorted(changed) if commit]
    parts = [when, f"from commit {', '.join(commits)}" if commits else ""]
    parts.append(f"by fedflow {', '.join(sorted({facts['version'] for facts in known}))}")
    return ", ".join(filter(None, parts))


def _of(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
