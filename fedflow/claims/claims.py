"""``claims.yaml``: claims of papers about methods, in a form that finished runs can decide.

The file, next to ``params.yaml``, is a list of claims. A check compares a measure of one method
(`fedflow.claims.measures`) with other methods or limits, in the units of result files (0.01 is a point)::

    - id: fair
      source: Li et al. 2021, Table 1
      claim: TERM raises the worst tenth of the clients and costs no accuracy.
      partition: mnist-dir
      all:
        - {measure: local_worst10, of: term, above: [fedavg], by: 0.01}
        - {measure: local_accuracy, of: term, equal: [fedavg], within: 0.02}

An advantage is the difference of two methods. Advantages are compared like measures, also across partitions::

    - id: grows
      source: Vahidian et al. 2023, Table 2.2
      claim: The advantage of a curriculum grows as beta falls.
      measure: global_accuracy
      rising:
        - {method: easy, minus: fedavg, partition: beta-0.9}
        - {method: easy, minus: fedavg, partition: beta-0.2}
        - {method: easy, minus: fedavg, partition: beta-0.05}

A method may replace the measure if its number is in another column::

    - id: adapted
      source: Acar et al. 2021, Table 3.2
      claim: PFLDyn (Proto) is above PFLDyn (MAML), each with its own adaptation.
      partition: alid
      measure: proto_accuracy
      of: pfldyn_proto
      above: [{method: pfldyn_maml, measure: maml_accuracy}]

Outcomes of procedures are compared in the same form: the partition is the entry under ``procedures``, a
method is a row of its summary, and the measure is a metric of its summary::

    - id: coreset
      source: Vahidian et al. 2020, Figure 1
      claim: The coreset has a smaller error than random samples.
      partition: blocks
      measure: error
      of: scgiga
      below: [random]

`fedflow.claims.verdicts` decides them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from fedflow.claims.measures import parse
from fedflow.config import read_yaml
from fedflow.errors import BadInput
from fedflow.settings import Settings, option

COMPARES, TRENDS = ("above", "below", "equal", "within"), ("rising", "trend")
GROUPS = ("all", "any")
KINDS = (*COMPARES, *TRENDS, *GROUPS)  # one of them in every check


class Arm(Settings):
    """A method: its name, or ``{method: ditto, where: {method.lam: 0.1}}``; an advantage or a ratio."""

    short: ClassVar[str] = "method"
    method: str = option(doc="its name")
    minus: "Arm | None" = option(None, "another method, whose measure is subtracted seed by seed")
    over: "Arm | None" = option(None, "another method, by whose measure it is divided seed by seed")
    partition: str | None = option(None, "replaces the partition of the check; `minus` and `over` inherit it")
    measure: str | None = option(
        None, "replaces the measure of the check, in the same unit; `minus` and `over` inherit it"
    )
    where: dict = option(factory=dict, doc="settings of its runs, by dotted name such as training.lr")

    def validate(self) -> None:
        if self.minus and self.over:
            raise BadInput("over", self.over.method, "null, as there is minus")
        name = "minus" if self.minus else "over"
        if self.other and self.other.other:
            raise BadInput(f"{name}.{name}", self.other.other.method, "null: one method is compared with one")
        if self.measure is not None:
            parse(self.measure)

    @property
    def other(self) -> "Arm | None":
        """The method that it is compared with: `minus` or `over`."""
        return self.minus or self.over


class Check(Settings):
    """A comparison, or a group of checks that inherit its partition, measure and settings."""

    partition: str | list[str] | None = option(None, "one or more partitions; it has to hold on all of them")
    where: dict = option(factory=dict, doc="settings of all runs compared, by dotted name")
    measure: str | None = option(None, "what is compared, such as local_worst10")
    of: Arm | None = option(None, "the method in question")
    above: list[Arm] = option(factory=list, doc="methods that it exceeds, each by more than `by`")
    below: list[Arm] = option(factory=list, doc="methods that exceed it, each by more than `by`")
    rising: list[Arm] = option(factory=list, doc="methods, each above the one before it by more than `by`")
    trend: list[Arm] = option(
        factory=list, doc="methods whose least-squares slope, by place in the list, is more than `by`"
    )
    by: float = option(0.0, "the difference to exceed", ge=0)
    equal: list[Arm] = option(factory=list, doc="methods that differ from it by at most `within`")
    within: float | list[float | None] | None = option(
        None, "with equal, the largest difference; else [low, high] of the measure, null = no limit"
    )
    all: list["Check"] = option(factory=list, doc="checks that all have to hold")
    any: list["Check"] = option(factory=list, doc="checks of which one has to hold")

    @property
    def kinds(self) -> list[str]:
        """The `KINDS` that are given."""
        given = [kind for kind in KINDS if getattr(self, kind) not in (None, [])]
        return [kind for kind in given if kind != "within" or "equal" not in given]

    @property
    def arms(self) -> list[Arm]:
        """The methods in the comparison."""
        first = [self.of] if self.of else []
        return [*first, *self.above, *self.below, *self.equal, *self.rising, *self.trend]

    @property
    def partitions(self) -> list[str]:
        return [self.partition] if isinstance(self.partition, str) else self.partition or []

    def validate(self) -> None:
        if len(self.kinds) > 1 or not (self.kinds or isinstance(self, Claim)):
            raise BadInput("checks", self.kinds, f"exactly one of {', '.join(KINDS)}")
        compares = any(kind in COMPARES for kind in self.kinds)
        if (self.of is None) is compares:
            accepted = "a value" if compares else f"null, unless there is one of {', '.join(COMPARES)}"
            raise BadInput("of", self.of and self.of.method, accepted)
        if self.partitions and self.arms and all(arm.partition for arm in self.arms):
            raise BadInput("partition", self.partition, "null, as every method has its own")
        if self.measure is not None and not self.kinds:
            raise BadInput("measure", self.measure, f"null, unless there is one of {', '.join(KINDS)}")
        if self.measure is not None:
            parse(self.measure)
        for name, least in {"rising": 2, "trend": 3}.items():
            if self.kinds == [name] and len(getattr(self, name)) < least:
                methods = [arm.method for arm in getattr(self, name)]
                raise BadInput(name, methods, f"a list of at least {least} methods")
        if self.by and not (self.above or self.below or self.rising or self.trend):
            raise BadInput("by", self.by, "0, unless there is above, below, rising or trend")
        if self.within is not None or self.equal:
            self.limits()
        if len({arm.over is None for arm in self.arms}) > 1:
            ratio = next(arm for arm in self.arms if arm.over)
            raise BadInput("over", ratio.method, "a method for all that are compared, or for none")

    def limits(self) -> tuple[float, float]:
        """The lowest and the highest accepted difference from an equal method, or value of the measure."""
        if self.equal:
            if isinstance(self.within, list) or (self.within or 0) < 0:
                raise BadInput("within", self.within, "a number >= 0 with equal")
            return -(self.within or 0), self.within or 0
        if not isinstance(self.within, list) or len(self.within) != 2:
            raise BadInput("within", self.within, "[low, high], where null is no limit")
        low, high = (
            limit if value is None else value
            for value, limit in zip(self.within, (float("-inf"), float("inf")), strict=True)
        )
        if low > high or self.within == [None, None]:
            raise BadInput("within", self.within, "[low, high] with low <= high, of which one may be null")
        return low, high


class Claim(Check):
    """A claim: a comparison or a group of checks, or the test that decides it."""

    id: str = option(doc="a short name")
    source: str = option(doc="where it is made")
    claim: str = option(doc="the claim in a sentence")
    test: str | None = option(
        None, "a test that decides it, as tests/file.py::function, or several with spaces in between"
    )
    refuted: bool = option(False, "the test shows that the claim is false")
    planned: bool | None = option(
        None, "whether claim, target, scale and seeds were fixed before any result was seen; null: not stated"
    )

    def validate(self) -> None:
        super().validate()
        if self.refuted and (self.kinds or self.test is None):
            raise BadInput("refuted", True, "false, for a claim without a test or with comparisons")
        if not self.kinds and self.test is None:
            raise BadInput("checks", None, f"exactly one of {', '.join(KINDS)}, or a test")
        for check, partitions, measure in _placed(self, self.partitions, self.measure):
            if measure is None and not all(arm.measure for arm in check.arms):
                raise BadInput("measure", None, "a value, here or around all checks")
            named = [side.measure for arm in check.arms for side in (arm, arm.other) if side]
            measures = [parse(name) for name in (measure, *named) if name]
            for other in measures[1:]:
                if other.unit != measures[0].unit:
                    raise BadInput("measure", other.text, f"one in the unit of {measures[0].text}")
            if not partitions and not all(arm.partition for arm in check.arms):
                raise BadInput("partition", None, "the name of a partition, or a list of names")

    @property
    def tests(self) -> list[str]:
        """The tests that decide it."""
        return self.test.split() if self.test else []

    @property
    def sides(self) -> set[tuple[str, str]]:
        """Partition and method of everything that it compares."""
        return {
            (side.partition or arm.partition or partition, side.method)
            for check, partitions, _ in _placed(self, self.partitions, self.measure)
            for arm in check.arms
            for side in (arm, arm.other)
            if side
            for partition in partitions or [""]
        }

    @property
    def selects(self) -> bool:
        """True if it compares runs whose settings differ from params.yaml."""
        checks = [check for check, _, _ in _placed(self, self.partitions, self.measure)]
        sides = [side for check in checks for arm in check.arms for side in (arm, arm.other) if side]
        return any(check.where for check in checks) or any(side.where for side in sides)


def load_claims(path: Path) -> list[Claim]:
    """The claims in a file, none without a file. Raises `FedflowError` if it is not valid."""
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
            raise error.renamed(f"{path}, {error.field}") from None
        if claim.id in claims:
            raise BadInput(f"{path}, claim {number}.id", claim.id, "a name that no earlier claim has")
        claims[claim.id] = claim
    return list(claims.values())


def _placed(
    check: Check, partitions: list[str], measure: str | None
) -> Iterator[tuple[Check, list[str], str | None]]:
    """Every check with its partitions and its measure."""
    yield check, partitions, measure
    for inner in (*check.all, *check.any):
        yield from _placed(inner, inner.partitions or partitions, inner.measure or measure)
