"""Everything that the report shows, with runs grouped once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedflow.claims.matching import Shown
from fedflow.claims.results import Recorded
from fedflow.claims.verdicts import Judged
from fedflow.finished import pairs
from fedflow.finished.cells import Methods
from fedflow.finished.collect import Labels, PartitionFacts
from fedflow.finished.collect_outcomes import Outcome
from fedflow.finished.networks import Network
from fedflow.finished.run import Run
from fedflow.finished.tables import best, by_method, by_partition, most_used, yardstick
from fedflow.naming import counted
from fedflow.pictures.accuracy import DRAWN
from fedflow.pictures.drawing import DASHES, SERIES
from fedflow.report.blocks import Block, Section, Text

LINES = len(SERIES) * len(DASHES)  # methods of a picture: in larger ones, two lines look the same
ALONE = 12  # methods of a partition that get separate pictures


@dataclass(frozen=True)
class ComparedPartition:
    """The runs on one partition, in the order of `collect_runs`, and by variant, the best first.

    ``facts`` are of the first run's division, if every seed draws one. They are None if all runs are of
    other divisions with this name.
    """

    name: str
    runs: list[Run]
    methods: Methods
    colors: dict[str, int]  # indices of the variants' colors on the page
    facts: PartitionFacts | None = None
    now: Mapping[str, Sequence[str]] = field(default_factory=dict)  # as for `changed`

    @property
    def key(self) -> str:
        """Prefix of its ids on the page."""
        letters = (letter if letter.isalnum() else str(ord(letter)) for letter in self.name)
        return f"p{'-'.join(letters)}"

    @property
    def division(self) -> str:
        """The first run's division of the data, by name."""
        return self.runs[0].division

    @property
    def divided(self) -> Methods:
        """The runs on this division, by variant: their clients have the same data."""
        return self.having(
            lambda run: (run.division, run.metrics["partition_hash"]) == (self.division, self.hash)
        )

    @property
    def hash(self) -> str:
        """The content hash of this division."""
        return str(self.facts.summary["hash"] if self.facts else self.runs[0].metrics["partition_hash"])

    @property
    def scheme(self) -> str:
        """The name of the partition scheme in words, or an empty text if unknown."""
        return self.facts.scheme.replace("_", " ") if self.facts else ""

    @property
    def counts(self) -> np.ndarray | None:
        """Samples of each label at each client [N, K], if known."""
        return self.facts.counts if self.facts else None

    def having(self, feature: Callable[[Run], Any]) -> Methods:
        """The runs with a feature, by variant."""
        methods = {variant: [run for run in runs if feature(run)] for variant, runs in self.methods.items()}
        return {variant: runs for variant, runs in methods.items() if runs}

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
        """Differences of methods by measure."""
        return pairs.differences(self.methods)


@dataclass(frozen=True)
class Compared:
    """Runs by partition, and the other contents of the report.

    ``labels`` of methods are from params.yaml, ``recorded`` are facts from MLflow, ``tried`` is the folder
    with the scores of `fedflow tune`.
    """

    runs: list[Run]
    partitions: list[ComparedPartition]
    colors: dict[str, int]  # indices of the colors of variants
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


def grouped(
    runs: list[Run],
    facts: Mapping[str, PartitionFacts] | None = None,
    now: Mapping[str, Sequence[str]] | None = None,
    **others: Any,
) -> Compared:
    """``runs`` by partition, with the ``facts`` of partitions; ``others`` are fields of `Compared`.

    ``now`` has the current settings and code of runs, as for `fedflow.project.identity.changed`.
    """
    groups = by_partition(runs)
    ordered = {name: _best_first(by_method(group)) for name, group in groups.items()}
    drawn = {variant for methods in ordered.values() for variant in leading(methods)}
    first = sorted(most_used(groups), key=lambda variant: variant not in drawn)
    colors = _looks(first, [{*leading(methods)} for methods in ordered.values()])
    partitions = [
        ComparedPartition(name, group, ordered[name], colors, _of_runs(group, facts or {}), now or {})
        for name, group in groups.items()
    ]
    return Compared(runs, partitions, colors, **others)


def _looks(variants: Sequence[str], pictures: Sequence[set[str]]) -> dict[str, int]:
    """An index for `line_style` per variant: a look that no other one in its pictures has, if any is left.

    >>> _looks(["a", "b"], [{"a", "b"}])
    {'a': 0, 'b': 1}
    """
    indices: dict[str, int] = {}
    free = [*range(len(variants) * LINES)]
    for variant in variants:
        neighbors = {other for names in pictures if variant in names for other in names} & indices.keys()
        looks = {indices[other] % LINES for other in neighbors}
        indices[variant] = next(i for i in free if len(looks) == LINES or i % LINES not in looks)
        free.remove(indices[variant])
    return indices


def _of_runs(runs: Sequence[Run], facts: Mapping[str, PartitionFacts]) -> PartitionFacts | None:
    """The facts of the first run's division, unless all of these runs are of others with this name."""
    stored = facts.get(runs[0].division)
    hashes = {run.metrics["partition_hash"] for run in runs}
    return stored if stored and stored.summary.get("hash") in hashes else None


def _best_first(methods: Methods) -> Methods:
    return {variant: methods[variant] for variant, _ in best(methods, yardstick(methods))} | methods


def rounds_of(runs: Sequence[Run]) -> str:
    """The fewest and the most rounds of runs: "3 to 8 rounds", or "8 rounds" if all have as many."""
    done = sorted({run.metrics["rounds"] for run in runs})
    last = counted(done[-1], "round")
    return last if len(done) == 1 else f"{done[0]:,} to {last}"


def leading(methods: Methods, most: int = LINES) -> Methods:
    """The methods of a partition that are drawn: the best."""
    return dict(islice(methods.items(), most))


def not_drawn(methods: Methods, most: int = LINES) -> list[Text]:
    """A note if some of ``methods`` are not `leading`."""
    return [Text(f"Drawn: the {most} best of {len(methods)} methods.")] if len(methods) > most else []


Part = Callable[[ComparedPartition], Sequence[Block]]
SectionFunction = Callable[[Compared], Section | None]


def partitioned(key: str, title: str, lead: str, name: str = "") -> Callable[[Part], SectionFunction]:
    """Make a section from a function that returns the blocks of one partition; no section without blocks."""

    def section_of(part: Part) -> SectionFunction:
        def section(c: Compared) -> Section | None:
            blocks = [block for partition in c.partitions for block in part(partition)]
            return Section(key, title, lead, blocks, name) if blocks else None

        return section

    return section_of
