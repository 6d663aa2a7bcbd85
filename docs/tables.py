"""Fill in the tables of results in the READMEs of the studies: ``python docs/tables.py``.

A table stands between ``<!-- table shards: local_accuracy; at(loss, 20) -->`` and ``<!-- end of table -->``:
partitions (or procedures) and measures, from ``results.csv``. Each row is a method or a variant of it, best
first by the first column. Cells are mean ± sample standard deviation over seeds; "+" means that a seed did
not reach its target, so that its number is a lower bound; "3 of 5" are the seeds with a number.
"""

import math
import re
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from fedflow.claims.measures import Measure, parse
from fedflow.claims.results import PROCEDURE, read_results
from fedflow.claims.sources import NONE
from fedflow.config import PARAMS, load_params
from fedflow.errors import BadInput
from fedflow.finished.tables import Stat
from fedflow.methods import METHODS

STUDIES = Path(__file__).parents[1] / "studies"
TABLE = re.compile(r"(<!-- table ([^:]+): (.*?) -->\n).*?(<!-- end of table -->)", re.DOTALL)
Row = dict[str, str]


class Cell(NamedTuple):
    """A measure over seeds: its mean, NaN without any, and its text."""

    mean: float
    text: str


def filled(readme: str, study: Path) -> str:
    """The text of a README with its tables as ``results.csv`` of the study has them."""
    labels = {name: method.label for name, method in METHODS.items()} | load_params(study / PARAMS).labels
    return TABLE.sub(partial(_filled, read_results(study), labels), readme)


def _filled(results: list[Row], labels: dict[str, str], found: re.Match[str]) -> str:
    partitions = [name.strip() for name in found[2].split(",")]
    rows = [row for row in results if row["partition"] in partitions]
    if absent := set(partitions) - {row["partition"] for row in rows}:
        raise BadInput("partition of a table", min(absent), "one in results.csv")
    measures = [_measure(text.strip(), rows[0]) for text in found[3].split(";")]
    columns = list(product(partitions, measures))
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(_name(row, labels), []).append(row)
    lines = [(name, [_cell(of, *column) for column in columns]) for name, of in by_name.items()]
    lines = [line for line in lines if not all(math.isnan(cell.mean) for cell in line[1])]
    sign = -1 if measures[0].better == "higher" else 1
    lines.sort(key=lambda line: (math.isnan(line[1][0].mean), sign * line[1][0].mean))
    shown = [f"{partition}: " * (len(partitions) > 1) + measure.label for partition, measure in columns]
    table = [["method", *shown], ["---", *["---:"] * len(shown)]]
    table += [[name, *(cell.text for cell in cells)] for name, cells in lines]
    return found[1] + "".join(f"| {' | '.join(line)} |\n" for line in table) + found[4]


def _measure(text: str, row: Row) -> Measure:
    """A measure that a row has, of a registered procedure if the row is of one."""
    if text not in row:
        raise BadInput("measure of a table", text, "a column of results.csv")
    return parse(text, procedure=row["registered"] if row["kind"] == PROCEDURE else "")


def _cell(rows: list[Row], partition: str, measure: Measure) -> Cell:
    texts = {int(row["seed"]): row[measure.text] for row in rows if row["partition"] == partition}
    values = {seed: float(text.removesuffix("+")) for seed, text in texts.items() if text not in ("", NONE)}
    if not values:
        return Cell(math.nan, "–")
    stat, unit = Stat(values), measure.unit
    bound = "+" * any(text.endswith("+") for text in texts.values())
    several = len(values) > 1 and not all(texts[seed].endswith("+") for seed in values)
    spread = f" ± {stat.std * unit.factor:.{unit.digits}f}" if several else ""
    some = f", {len(values)} of {len(texts)}" if len(values) < len(texts) else ""
    return Cell(
        stat.mean, f"{stat.mean * unit.factor:z.{unit.digits}f}{bound}{spread}{some}".replace("-", "−")
    )


def _name(row: Row, labels: dict[str, str]) -> str:
    """The label of a method, and how its settings differ from those in ``params.yaml``."""
    settings = row.get("variant", "").replace("method.", "").replace("_", r"\_")
    return ", ".join(filter(None, (labels.get(row["method"], row["method"]), settings)))


if __name__ == "__main__":
    for file in sorted(STUDIES.glob("*/README.md")):
        file.write_text(filled(file.read_text(), file.parent))
