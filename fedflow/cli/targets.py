"""``targets``: the cost of reaching a number for every method, from finished runs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedflow.cli.options import Root
from fedflow.cli.printing import print_line, print_table
from fedflow.errors import FedflowError

if TYPE_CHECKING:
    from fedflow.claims.targets import Costs


def targets(
    column: Annotated[str, typer.Option(help="A column of rounds.csv, such as all_accuracy.")],
    target: Annotated[
        float, typer.Option(help="The value to reach: 0.8 is 80 %. Losses reach it from above.")
    ],
    smooth: Annotated[
        float, typer.Option(help="Smooth the column first: weight of the previous mean.")
    ] = 0.0,
    partition: Annotated[str | None, typer.Option(help="Only this partition.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with unrounded numbers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with unrounded numbers.")] = False,
    root: Root = Path(),
) -> None:
    """Show when each method reached a target, its cost, and its cost relative to the cheapest method.

    Example: `fedflow targets --column global_accuracy --target 0.8`. A transmission is the traffic of a
    FedAvg round with the same cohorts; `+`: a seed did not reach the target within its rounds.
    """
    import pandas as pd

    from fedflow.claims.targets import NotMeasured, check_target, compared, cost_table, costs, spacing
    from fedflow.config import PARAMS, load_params
    from fedflow.errors import unknown_name
    from fedflow.finished.collect import collect_runs
    from fedflow.finished.tables import by_method, by_partition

    check_target(column, target, smooth)
    labels = load_params(root / PARAMS).labels if (root / PARAMS).exists() else None
    if csv and as_json:
        raise FedflowError("--csv or --json, not both")
    groups = by_partition(collect_runs(root / "results", labels))
    if partition is not None and partition not in groups:
        raise unknown_name("--partition", partition, groups)
    left_out: list[NotMeasured] = []
    tables = []
    for name in [partition] if partition else groups:
        measured = []
        for runs in by_method(groups[name]).values():
            try:
                measured.append(costs(runs, column, target, smooth))
            except NotMeasured as error:
                left_out.append(error)
        if not measured:
            continue
        rows = compared(measured)
        tables.append(cost_table(name, rows))
        if csv or as_json:
            continue
        columns = ("method", "reached", "rounds", "transmissions", "MB", "gradients", "gain")
        print_table(f"{name}: {column} {target:g}", columns, [_cells(row) for row in rows])
        if (every := spacing(groups[name], column)) > 1:
            late = "1 round" if every == 2 else f"{every - 1} rounds"
            print_line(f"evaluated every {every} rounds: rounds are up to {late} late")
        print_line("")
    if not tables:
        raise left_out[0]
    if csv:
        text = pd.concat(tables).to_csv(index=False, float_format="%.9g", lineterminator="\n")
        print(text, end="")
    if as_json:
        print(pd.concat(tables).to_json(orient="records", indent=1, double_precision=15))
    for reason in left_out:
        print(f"left out: {reason}", file=sys.stderr)


def _cells(row: "Costs") -> tuple[str, ...]:
    """One method's costs and gain as text, with dashes for numbers that its results lack."""
    costs = (row.rounds.text(), row.transmissions, row.bytes.text(1e-6), row.gradients)
    texts = [cost if isinstance(cost, str) else cost.text() if cost else "–" for cost in costs]
    return row.runs[0].label, row.rounds.share, *texts, row.gain or "–"
