"""``results.csv``: final numbers of every run of a study, to be committed next to ``verdicts.yaml``.

A row per run and seed, or per row of the summary of a procedure: the metrics of the report's tables, the
measures of claims and of published cells that runs match, and the origin of the run: day, commit, lock,
processor, seconds, and the digests of settings and code. The names of its methods and network lead to the
digest of the same code now (`fedflow.stages.current.current_code`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from fedflow.claims.claims import Arm, Check, Claim
from fedflow.claims.matching import Match
from fedflow.claims.measures import Measure, parse
from fedflow.claims.sources import NONE, RESULTS
from fedflow.claims.targets import NotMeasured
from fedflow.errors import FedflowError
from fedflow.finished.run import Run
from fedflow.finished.tables import SOME, TABLES, columns, write_csv
from fedflow.procedures import PROCEDURES
from fedflow.project.digest import SHORT
from fedflow.project.identity import Identity

NAMES = ("partition", "division", "method", "variant", "seed")
SIZES = ("clients", "rounds")
CHANGES = "changes"  # sections of the settings that differ from params.yaml, as JSON
CODE = ("kind", "registered", "networks", "code")  # what decides the digest of the code, and the digest
ORIGIN = ("date", "commit", "lock", "processor", "seconds", "settings", *CODE)
TEXT = ("partition", "method", "seed", "settings", *CODE)  # columns of every file
EQUAL = "equal_code"  # digest of later code that gave the same numbers in a sample of the rows
DIGITS = 12  # of a digest of code
RUN, PROCEDURE = "run", "procedure"  # kinds
ADAPTED = "+lora"  # after the name of a network with adapters

Recorded = Mapping[tuple[str, str, str, str], Mapping[str, Any]]  # of `fedflow.tracking.lineage`


def write_results(
    study: Path,
    runs: Iterable[Run],
    claims: Iterable[Claim],
    recorded: Recorded,
    matched: Iterable[Match] = (),
    changes: Callable[[Run], str] = lambda run: "",
) -> Path:
    """Write ``results.csv`` into a study's folder; returns it. ``runs`` may include rows of outcomes.

    ``matched`` are the published cells of the runs; ``changes`` are of runs that are not as in params.yaml.
    """
    read = [text for claim in claims for text in _measures(claim)]
    measures = list(dict.fromkeys([*read, *(match.cell.measure for match in matched if match.cell.measure)]))
    names = [metric.name for table in (*TABLES, *SOME) for metric in columns(table)]
    names += ["onboarding_bytes_down", "onboarding_bytes_up"]
    rows = [_row(run, names, measures, recorded) | {CHANGES: changes(run)} for run in runs]
    equal = {_key(row): row.get(EQUAL, "") for row in read_results(study)}
    rows = [{EQUAL: equal.get(_key(row), "")} | row for row in rows]
    filled = {name for row in rows for name, value in row.items() if value != ""}
    others = sorted(
        {name for row in rows for name in row} - {*NAMES, *SIZES, CHANGES, *names, *measures, *ORIGIN, EQUAL}
    )
    ordered = dict.fromkeys((*NAMES, *SIZES, *names, *measures, *others, CHANGES, *ORIGIN, EQUAL))
    rows.sort(key=lambda row: tuple(row[name] for name in NAMES))
    shown = [name for name in ordered if name in filled or name in ORIGIN]
    table = pd.DataFrame(rows, columns=shown, dtype=object).fillna("")
    file = study / RESULTS
    write_csv(table, file)
    return file


def read_results(study: Path) -> list[dict[str, str]]:
    """The rows of ``results.csv`` in a study's folder as text; none without the file.

    Raises `FedflowError` for a damaged file.
    """
    file = study / RESULTS
    if not file.exists():
        return []
    try:
        table = pd.read_csv(file, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise FedflowError(f"cannot read {file}: {' '.join(str(error).split())}") from error
    if missing := [name for name in TEXT if name not in table]:
        raise FedflowError(f"{file} has no column {', '.join(missing)}")
    for line, seed in enumerate(table["seed"], 2):
        if not seed.isdecimal():
            raise FedflowError(f"{file}, line {line}: the seed is {seed!r:.40}, not a whole number")
    return [dict(zip(table.columns, row, strict=True)) for row in table.itertuples(index=False)]


def origin(run: Run, recorded: Recorded) -> dict[str, str]:
    """Day, commit, lock and processor of a run, and its seconds; empty texts for a run without a record."""
    if run.committed:
        return {name: run.committed.get(name, "") for name in ORIGIN[:5]}
    method = "" if run.procedure else run.method
    facts = recorded.get((run.partition, method, str(run.seed), run.settings), {})
    if not facts:
        return dict.fromkeys(ORIGIN[:5], "")
    return {
        "date": f"{datetime.fromtimestamp(facts['end'], UTC):%Y-%m-%d}",
        "commit": facts["commit"][:SHORT] + "-dirty" * facts["changed"],
        "lock": facts["lock"][:SHORT],
        "processor": facts["processor"],
        "seconds": f"{facts['seconds']:.0f}",
    }


def registered(run: Run) -> tuple[str, str, str]:
    """Kind, registered methods, steps and extensions or procedure, and networks of a run, in words."""
    if run.procedure:
        networks = [_network(model) for _, model in sorted(run.params.get("models", {}).items())]
        return PROCEDURE, run.procedure, " ".join(networks)
    return RUN, " ".join(registered_names(run.params)), _network(run.params["model"])


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns that tell a row from all others, with its settings and code."""
    return tuple(str(row.get(name, "")) for name in (*NAMES, CHANGES, "settings", *CODE))


def _network(model: Mapping[str, Any]) -> str:
    return model["name"] + (ADAPTED if model["options"].get("lora") is not None else "")


def _row(run: Run, names: Sequence[str], measures: Sequence[str], recorded: Recorded) -> dict[str, Any]:
    """The columns of a run as text, except its seed."""
    if run.committed:
        return {**dict.fromkeys(NAMES, ""), **run.committed, "seed": run.seed}
    variant = run.variant.removeprefix(run.method).removeprefix(" · ")
    facts = (run.partition, run.metrics.get("division", ""), run.method, variant, run.seed)
    if run.procedure:
        listed = PROCEDURES[run.procedure].metrics
        metrics = {name: _number(run.metrics.get(name)) for name in listed}
        metrics |= {
            name: _value(parse(name, procedure=run.procedure), run) for name in measures if name in listed
        }
    else:
        metrics = {name: run.metrics.get(name, "") for name in SIZES}
        metrics |= {name: _number(run.metrics.get(name)) for name in names}
        metrics |= {text: _value(parse(text), run) for text in measures}
    made = origin(run, recorded) | {"settings": run.settings[:SHORT]}
    return dict(zip(NAMES, facts)) | metrics | made | dict(zip(CODE, (*registered(run), code_of(run))))


def code_of(run: Run) -> str:
    """The first digits of the digest of the code that computed a run here; empty if it is unknown."""
    identity = Identity.read(run.folder)
    return identity.code[:DIGITS] if identity else ""


def _value(measure: Measure, run: Run) -> str:
    """A measure of a run in full, "60+" for a lower bound, empty if it was not measured."""
    try:
        value = measure.of(run)
        least = measure.least(run) if value is None else None
    except NotMeasured:
        return ""
    if value is not None:
        return _exact(value)
    return NONE if least is None else f"{_exact(least)}+"


def _exact(value: float) -> str:
    """A number in full, as rounding might resolve a tie of runs here and elsewhere."""
    return _number(value) if float(_number(value)) == value else repr(float(value))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _measures(check: Check) -> Iterator[str]:
    """The measures of runs that a check reads, also in the checks within it."""
    sides: list[Arm] = [side for arm in check.arms for side in (arm, arm.other) if side]
    texts = (check.measure, *(side.measure for side in sides))
    yield from (text for text in texts if text)
    for part in (*check.all, *check.any):
        yield from _measures(part)


def registered_names(params: Mapping[str, Any]) -> list[str]:
    """The registered names in a run's settings: methods, update steps, extensions of local training."""
    steps = [step["step"] for step in params["run"].get("updates", ())]
    return [*_methods(params["method"]), *steps, *params["training"].get("extensions", ())]


def _methods(params: Mapping[str, Any]) -> list[str]:
    """The registered name of a method, then of the methods that it wraps."""
    return [params["name"], *(_methods(params["host"]) if "host" in params else [])]
