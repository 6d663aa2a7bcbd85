"""The files of a finished procedure, for DVC, the report and MLflow. Deterministic bytes."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.torch import save_file

from fedflow.errors import FedflowError
from fedflow.files import Write, read_fact, replace_files, write_json
from fedflow.procedures.interface import Findings, Row
from fedflow.project.identity import FILE as IDENTITY
from fedflow.project.identity import Identity

MARKER, STEPS, SUMMARY, PARAMS = "metrics.json", "steps.csv", "summary.csv", "params.json"
VECTORS = "vectors.safetensors"


def write_outcome(
    folder: Path,
    facts: dict[str, Any],
    params: dict[str, Any],
    rows: Mapping[str, Sequence[Row]],
    findings: Findings,
    numbers: Mapping[str, float | None],
    identity: Identity | None = None,
) -> None:
    """Write the files of an outcome in place of an earlier outcome; other files in the folder stay.

    ``metrics.json``, written last, has the ``facts`` that identify the outcome and its final ``numbers``;
    ``summary.csv`` has the same numbers as a table, ``steps.csv`` the ``rows`` by part and step,
    ``params.json`` the settings ``params``. Raises `FedflowError` if the folder cannot be written.
    """
    steps = [{"part": part, "step": i} | row for part, some in rows.items() for i, row in enumerate(some, 1)]
    summary = pd.DataFrame.from_dict(findings.summary, orient="index").rename_axis("row")
    facts = facts | {"steps": max(map(len, rows.values())), "metrics": numbers}
    earlier = [*folder.glob("tables/*.csv"), *folder.glob("pictures/*.svg")]
    if read_fact(folder / MARKER, "procedure") is None:
        earlier = []
    files: dict[str, Write | None] = {str(path.relative_to(folder)): None for path in earlier}
    files |= {
        PARAMS: partial(write_json, value=params),
        IDENTITY: partial(write_json, value=identity.as_dict()) if identity else None,
        STEPS: _csv(pd.DataFrame(steps), index=False),
        SUMMARY: _csv(summary),
        **{f"tables/{name}.csv": _csv(table, index=False) for name, table in findings.tables.items()},
        **{f"pictures/{d.name}.svg": partial(_text, text=d.file) for d in findings.drawings},
        VECTORS: partial(save_file, {n: t.contiguous() for n, t in findings.vectors.items()}),
        MARKER: partial(write_json, value=facts),
    }
    replace_files(folder, files, MARKER)


def final_numbers(folder: Path, findings: Findings) -> dict[str, float | None]:
    """The numbers of the summary as ``<metric>/<row>``. Raises `FedflowError` unless all are finite."""
    numbers = {
        f"{metric}/{row}" if row else metric: None if value is None else float(value)
        for row, values in findings.summary.items()
        for metric, value in values.items()
    }
    if bad := [name for name, value in numbers.items() if value is not None and not np.isfinite(value)]:
        raise FedflowError(f"{folder}: {bad[0]} is {numbers[bad[0]]}, not a finite number")
    return numbers


def read_parts(path: Path) -> pd.DataFrame:
    """Read ``summary.csv`` or ``steps.csv``; names of rows and parts stay text, such as "01" or "NA"."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    for name in table.columns.difference(["row", "part"]):
        table[name] = pd.to_numeric(table[name].where(table[name] != ""))
    return table


def _csv(table: pd.DataFrame, index: bool = True) -> Write:
    return partial(table.to_csv, index=index, float_format="%.9g")


def _text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
