"""``claims.yaml``: what papers say about methods, in a form that collected runs can decide.

The file is beside ``params.yaml``, a list of claims. A check compares a measure (`fedflow.report.measures`)
of one method with other methods, or with limits, in the units of the result files (0.01 is a point)::

    - id: fair
      source: Li et al. 2021, Table 1
      claim: TERM raises the worst tenth of the clients and costs no accuracy.
      partition: mnist-dir
      all:
        - {measure: local_worst10, of: term, above: [fedavg], by: 0.01}
        - {measure: local_accuracy, of: term, equal: [fedavg], within: 0.02}

`fedflow.report.verdicts` decides them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from fedflow.config import read_yaml
from fedflow.errors import BadInput
from fedflow.report.measures import parse
from fedflow.settings import Settings, option

COMPARES, GROUPS = ("above", "below", "equal", "within"), ("all", "any")  # one of them in every check


class Arm(Settings):
    """A method, by name or as ``{method: ditto, where: {method.lam: 0.1}}``."""

    method: str = option(doc="its name")
    where: dict = option(factory=dict, doc="settings of its runs, by dotted name such as training.lr")

    @classmethod
    def parse(cls, values: Any, section: str | None = None) -> Self:
        """Build from a mapping, or from the name of a method alone."""
        return super().parse({"method": values} if isinstance(values, str) else values, section)


class Check(Settings):
    """A comparison, or a group of checks, whose partition and settings those within inherit."""

    partition: str | list[str] | None = option(None, "one or more partitions, on all of which it has to hold")
    where: dict = option(factory=dict, doc="settings of all runs compared, by dotted name")
    measure: str | None = option(None, "what is compared, such as local_worst10")
    of: Arm | None = option(None, "the method in question")
    above: list[Arm] = option(factory=list, doc="methods that it exceeds, each by more than `by`")
    below: list[Arm] = option(factory=list, doc="methods that exceed it, each by more than `by`")
    by: float = option(0.0, "the difference to exceed", ge=0)
    equal: list[Arm] = option(factory=list, doc="methods that differ from it by at most `within`")
    within: float | list[float | None] | None = option(
        None, "beside equal the largest difference; else [low, high] of the measure, null = no limit"
    )
    all: list["Check"] = option(factory=list, doc="checks that all have to hold")
    any: list["Check"] = option(factory=list, doc="checks of which one has to hold")

    @property
    def kinds(self) -> list[str]:
        """Those of above, below, equal, within, all and any that it has."""
        given = [kind for kind in (*COMPARES, *GROUPS) if getattr(self, kind) not in (None, [])]
        return [kind for kind in given if kind != "within" or "equal" not in given]

    @property
    def partitions(self) -> list[str]:
        return [self.partition] if isinstance(self.partition, str) else self.partition or []

    def validate(self) -> None:
        if len(self.kinds) > 1 or not (self.kinds or isinstance(self, Claim)):
            accepted = f"exactly one of {', '.join((*COMPARES, *GROUPS))}"
            raise BadInput("checks", self.kinds, accepted)
        compares = self.kinds[:1] in [[kind] for kind in COMPARES]
        for name in ("measure", "of"):
            if (getattr(self, name) is None) is compares:
                accepted = "a value" if compares else f"null, unless there is one of {', '.join(COMPARES)}"
                raise BadInput(name, getattr(self, name), accepted)
        if self.measure is not None:
            parse(self.measure)
        if self.by and not (self.above or self.below):
            raise BadInput("by", self.by, "0, unless there is above or below")
        if self.within is not None or self.equal:
            self.limits()

    def limits(self) -> tuple[float, float]:
        """The lowest and the highest accepted difference from an equal method, or value of the measure."""
        if self.equal:
            if isinstance(self.within, list) or (self.within or 0) < 0:
                raise BadInput("within", self.within, "a number >= 0 beside equal")
            return -(self.within or 0), self.within or 0
        if not isinstance(self.within, list) or len(self.within) != 2:
            raise BadInput("within", self.within, "[low, high], where null is no limit")
        low, high = (
            limit if value is None else value
            for value, limit in zip(self.within, (float("-inf"), float("inf")), strict=True)
        )
        if low > high:
            raise BadInput("within", self.within, "[low, high] with low <= high")
        return low, high


class Claim(Check):
    """A claim: a comparison or a group of checks, or the test that holds it."""

    id: str = option(doc="a short name")
    source: str = option(doc="where it is made")
    claim: str = option(doc="what it says, in a sentence")
    test: str | None = option(None, "a test that holds it, as tests/file.py::function")

    def validate(self) -> None:
        super().validate()
        if not self.kinds and self.test is None:
            accepted = f"exactly one of {', '.join((*COMPARES, *GROUPS))}, or a test"
            raise BadInput("checks", None, accepted)
        for check, partitions in _placed(self, self.partitions):
            if check.measure and not partitions:
                raise BadInput("partition", None, "the name of a partition, or a list of names")


def load_claims(path: Path) -> list[Claim]:
    """The claims of a file, none if there is no file. Raises `FedflowError` if it is not valid."""
    if not path.exists():
        return []
    entries = read_yaml(path)
    if entries is None:  # nothing but comments
        return []
    if not isinstance(entries, list):
        raise BadInput(str(path), entries, "a list of claims")
    claims: dict[str, Claim] = {}
    for number, entry in enumerate(entries, 1):
        name = entry.get("id", number) if isinstance(entry, dict) else number
        try:
            claim = Claim.parse(entry, section=f"claim {name}")
        except BadInput as error:
            raise BadInput(f"{path}, {error.field}", error.value, error.accepted) from None
        if claim.id in claims:
            raise BadInput(f"{path}, claim {number}.id", claim.id, "a name that no earlier claim has")
        claims[claim.id] = claim
    return list(claims.values())


def _placed(check: Check, partitions: list[str]) -> Iterator[tuple[Check, list[str]]]:
    """Every check with its partitions."""
    yield check, partitions
    for inner in (*check.all, *check.any):
        yield from _placed(inner, inner.partitions or partitions)
