"""Run every method with every step of updates, and FedAvg with every two; write what is refused.

``python docs/composition.py`` writes composition.csv, which is committed, as a run takes 0.1 s.
"""

import csv
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from itertools import permutations
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
sys.path.insert(0, str(HOME / "tests"))
import support  # noqa: E402

from fedflow.data import DatasetParams, prepare  # noqa: E402
from fedflow.errors import BadInput, FedflowError  # noqa: E402
from fedflow.methods import METHODS  # noqa: E402
from fedflow.settings import check, hints  # noqa: E402
from fedflow.simulation.federation import Federation  # noqa: E402
from fedflow.simulation.updates import STEPS, UpdateStep  # noqa: E402

TABLE = Path(__file__).with_name("composition.csv")
COLUMNS = ("method", "steps", "refused")
VALUES = (1, 0.5, 0.1, 2)  # for options without a default
# Options that eight clients need, or of which one of two is needed.
OPTIONS: dict[str, dict[str, Any]] = {
    "bulyan": {"attackers": 0.1},
    "privacy": {"norm": 1.0, "noise": 1.0, "delta": 1e-3},
}
RUN: dict[str, Any] = {"rounds": 2, "training": {"epochs": 1, "batch_size": 8, "lr": 0.05}}


def combinations() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every method of fedflow with every step, and FedAvg with every two steps in both orders."""
    steps = [name for name, cls in STEPS.items() if cls.__module__.startswith("fedflow.")]
    for name, cls in METHODS.items():
        if cls.__module__.startswith("fedflow."):
            yield from ((name, (step,)) for step in steps)
    yield from (("fedavg", pair) for pair in permutations(steps, 2))


def example(step: type[UpdateStep]) -> dict[str, Any]:
    """Settings of a step: its ``example``, if any, and the first accepted values of required options."""
    given: dict[str, Any] = {"step": step.name} | OPTIONS.get(step.name, {}) | getattr(step, "example", {})
    for field in fields(step):  # type: ignore[arg-type]
        if field.default is MISSING and field.default_factory is MISSING and field.name not in given:
            tried = (*field.metadata["choices"], *field.metadata["grid"], *VALUES)
            given[field.name] = next(v for v in tried if _accepted(step, field, v))
    return given


def _accepted(step: type[UpdateStep], field: Any, value: Any) -> bool:
    try:
        check(field.name, value, hints(step)[field.name], field.metadata)
    except BadInput:
        return False
    return True


def refusal(federation: Federation, method: str, steps: Sequence[str]) -> str:
    """The line that refuses the steps, or the reason why clients fail; empty if two rounds work.

    Clients have equal weights where the method lets them, as some steps need it.
    """
    updates = [example(STEPS[step]) for step in steps]
    hyper = {"weighting": "uniform"} if "weighting" in hints(METHODS[method]) else {}
    try:
        ran = support.run(method, support.suited(method, federation), hyper=hyper, updates=updates, **RUN)
    except FedflowError as error:
        return str(error)
    failed = [reason for report in ran.rounds for reason in report.failed.values()]
    if not failed and not all(w.isfinite().all() for w in ran.state().values()):
        failed = ["a model is NaN or infinite"]
    return failed[0] if failed else ""


def federation(folder: Path) -> Federation:
    """Eight clients with digits."""
    return support.images(prepare(DatasetParams(source="digits"), folder))


def read() -> dict[tuple[str, tuple[str, ...]], str]:
    """The committed table: the refusal by method and steps."""
    with TABLE.open(newline="") as file:
        return {(row["method"], tuple(row["steps"].split())): row["refused"] for row in csv.DictReader(file)}


def write() -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, TABLE.open("w", newline="") as file:
        table, clients = csv.writer(file, lineterminator="\n"), federation(Path(folder))
        table.writerow(COLUMNS)
        for method, steps in combinations():
            table.writerow((method, " ".join(steps), refusal(clients, method, steps)))


if __name__ == "__main__":
    write()
