"""Everything that the report is made from, with the runs grouped once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedflow.claims.matching import Shown
from fedflow.claims.verdicts import Judged
from fedflow.finished import pairs
from fedflow.finished.cells import Methods
from fedflow.finished.collect import Labels, PartitionFacts
from fedflow.finished.collect_outcomes import Outcome
from fedflow.finished.networks import Network
from fedflow.finished.run import Run
from fedflow.finished.tables import best, by_method, by_partition, most_used, yardstick
from fedflow.pictures.accuracy import DRAWN
from fedflow.report.blocks import Block, Section

Recorded = Mapping[tuple[str, str, str, str], Mapping[str, Any]]  # of `recorded_runs`


@dataclass(frozen=True)
class ComparedPartition:
    """The runs on one partition, in the order of `collect_runs`, and by variant, the best first.

    ``places`` are the places of the variants' colors on the page.
    """

    name: str
    runs: list[Run]
    methods: Methods
    places: dict[str, int]
    facts: PartitionFacts | None = None

    @property
    def key(self) -> str:
        """The start of the ids of its places on the page."""
        letters = (letter if letter.isalnum() else str(ord(letter)) for letter in self.name)
        return f"p{'-'.join(letters)}"

    @property
    def scheme(self) -> str:
        """The name of the partition scheme in words; empty if it is not known."""
        return self.facts.scheme.replace("_", " ") if self.facts else ""

    @property
    def counts(self) -> np.ndarray | None:
        """Samples of each label at each client [N, K], if they are known."""
        return self.facts.counts if self.facts else None

    def having(self, feature: Callable[[Run], Any]) -> Methods:
        """By variant, the runs that have a feature."""
        found = {variant: [run for run in runs if feature(run)] for variant, runs in self.methods.items()}
        return {variant: runs for variant, runs in found.items() if runs}

    @cached_property
    def rated(self) -> Methods:
        """The methods whose runs have all accuracies."""
        return {
            variant: runs
            for variant, runs in self.methods.items()
            if all(run.metrics.get(name) is not None for run in runs for name in DRAWN)
        }

    @cached_property
    def pairs(self) -> dict[str, pairs.Differences]:
        """The differences of methods, by measure."""
        return pairs.differences(self.methods)


@dataclass(frozen=True)
class Compared:
    """Runs by partition, and what else the report is made from.

    ``labels`` of methods are from params.yaml, ``recorded`` is what MLflow knows of the runs; ``tried`` is
    the folder with the scores of `fedflow tune`.
    """

    runs: list[Run]
    partitions: list[ComparedPartition]
    places: dict[str, int]  # of the colors of variants
    outcomes: Sequence[Outcome] = ()
    networks: Sequence[Network] = ()
    claims: Sequence[Judged] = ()
    published: Sequence[Shown] = ()
    recorded: Recorded = field(default_factory=dict)
    labels: Labels = field(default_factory=dict)
    tried: Path | None = None

    @property
    def methods(self) -> dict[str, str]:
        """Labels of the methods by name."""
        return {run.method: run.metrics["method_label"] for run in self.runs}


def grouped(runs: list[Run], facts: Mapping[str, PartitionFacts] | None = None, **others: Any) -> Compared:
    """``runs`` by partition, with the ``facts`` of partitions; ``others`` are fields of `Compared`."""
    groups = by_partition(runs)
    places = {variant: place for place, variant in enumerate(most_used(groups))}
    partitions = []
    for name, own in groups.items():
        found = by_method(own)
        methods = {variant: found[variant] for variant, _ in best(found, yardstick(found))} | found
        partitions.append(ComparedPartition(name, own, methods, places, (facts or {}).get(name)))
    return Compared(runs, partitions, places, **others)


Part = Callable[[ComparedPartition], Sequence[Block]]
SectionFunction = Callable[[Compared], Section | None]


def partitioned(key: str, title: str, lead: str, name: str = "") -> Callable[[Part], SectionFunction]:
    """Make a section of what a function shows of one partition; there is none if no partition has any."""

    def section_of(part: Part) -> SectionFunction:
        def section(c: Compared) -> Section | None:
            blocks = [block for partition in c.partitions for block in part(partition)]
            return Section(key, title, lead, blocks, name) if blocks else None

        return section

    return section_of
