"""Lineage: from the data over partition, runs and clusters to registered models, with what made them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from fedflow.finished.cells import label
from fedflow.finished.run import Run

Recorded = Mapping[tuple[str, str, str, str], Mapping[str, Any]]  # of `recorded_runs`


@dataclass(frozen=True)
class Step:
    """A link of the chain: its kind, name, digest, a note, the command that makes it, where more of it is."""

    kind: str
    name: str
    digest: str = ""
    note: str = ""
    command: str = ""
    link: str = ""
    picture: Markup | None = None


@dataclass(frozen=True)
class Origin:
    """Where one run comes from."""

    variant: str
    label: str
    seed: int
    facts: Mapping[str, Any]  # empty if it is not in the record

    @property
    def models(self) -> list[tuple[str, str]]:
        """Registered versions and their pages."""
        return [(name, self.facts["pages"][name]) for name in self.facts["models"]]


@dataclass(frozen=True)
class Lineage:
    steps: list[Step]
    origins: list[Origin]

    @property
    def recorded(self) -> bool:
        return any(origin.facts for origin in self.origins)


def lineage(
    methods: Mapping[str, Sequence[Run]],
    recorded: Recorded,
    key: str = "",
    pictures: Mapping[str, Markup] | None = None,
) -> Lineage:
    """The chain of one partition; ``key`` starts the ids of its places on the page.

    ``pictures`` are small ones, by kind.
    """
    runs = [run for own in methods.values() for run in own]
    first, small = runs[0].metrics, pictures or {}
    origins = [
        Origin(run.variant, label([run]), run.seed, recorded.get(_key(run), {}))
        for own in methods.values()
        for run in own
    ]
    known = [origin.facts for origin in origins if origin.facts]
    counted = f"{_of(len(runs), 'run')} of {_of(len(methods), 'method')}"
    experiment = known[0]["experiment_page"] if known else ""
    data, partition = first["dataset"], first["partition"]
    steps = [
        Step("Data", data, first["data_hash"], "", f"fedflow prepare {data}", f"#{key}-about"),
        Step(
            "Partition",
            partition,
            first["partition_hash"],
            _of(first["clients"], "client"),
            f"fedflow partition {partition}",
            f"#{key}-{'labels' if 'Partition' in small else 'about'}",
            small.get("Partition"),
        ),
        Step("Runs", counted, "", _made(known, command=False), _command(known), experiment),
    ]
    if found := sum(bool(run.history) for run in runs):
        note = f"{_of(len({facts['clusters'] for facts in known} - {''}), 'different assignment')} recorded"
        note, picture = note if known else "", small.get("Clusters")
        steps.append(Step("Clusters", f"of {_of(found, 'run')}", "", note, "", f"#{key}-groups", picture))
    if models := sum(len(facts["models"]) for facts in known):
        steps.append(Step("Models", _of(models, "registered version"), link=f"#{key}-runs"))
    return Lineage(steps, origins)


def made(recorded: Recorded, runs: Sequence[Run]) -> str:
    """When, from which commit, by which version and command the shown runs were made; empty if unknown."""
    return _made([facts for run in runs if (facts := recorded.get(_key(run)))])


def _key(run: Run) -> tuple[str, str, str, str]:
    return run.partition, run.method, str(run.seed), run.settings


def _made(known: Sequence[Mapping[str, Any]], command: bool = True) -> str:
    if not known:
        return ""
    ended = sorted(facts["ended"] for facts in known)
    when = ended[0] if ended[0] == ended[-1] else f"{ended[0]} to {ended[-1]}"
    changed = {facts["commit"]: " with changes" * facts["changed"] for facts in known}
    commits = [f"{commit}{changed[commit]}" for commit in sorted(changed) if commit]
    parts = [when, f"from commit {', '.join(commits)}" if commits else ""]
    parts.append(f"by fedflow {', '.join(sorted({facts['version'] for facts in known}))}")
    parts.append(f"with {_command(known)}" if command and _command(known) else "")
    return ", ".join(filter(None, parts))


def _command(known: Sequence[Mapping[str, Any]]) -> str:
    """The command that made the runs, or how many there are."""
    commands = {facts["command"] for facts in known} - {""}
    return next(iter(commands)) if len(commands) == 1 else f"{len(commands)} commands" if commands else ""


def _of(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
