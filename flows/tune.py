"""Choose the settings of methods on held-out training data: one small grid each, the same rule for all."""

from pathlib import Path
from typing import Any

import pandas as pd
from prefect import flow

from fedflow.config import load_params
from fedflow.tuning import choose, overrides, write_choice
from flows.federate import federate


@flow(name="tune", log_prints=True)
def tune(
    partition: str,
    methods: list[str] | None = None,
    settings: list[str] | None = None,
    root: str = ".",
    write: bool = True,
) -> dict[str, dict[str, Any]]:
    """Run the grid under ``tuning`` in params.yaml; returns what is chosen for every method.

    Every try is a recorded run of the partition ``<name>-validation``; its scores are listed in
    ``tuning/<partition>.csv``.

    Args:
        partition: a name under ``partitions`` in params.yaml
        methods: names of methods (default: those of the grid)
        settings: changes to params.yaml, such as ``tuning.rounds=10``
        root: the project's folder
        write: put what is chosen under ``tuned`` in params.yaml
    """
    file, home = Path(root) / "params.yaml", Path(root) / "tuning"
    params = load_params(file, settings or [])
    entry, rows, chosen = params.partitions[partition], [], {}
    for method in methods or params.grid.methods:
        tries, scores = list(params.tuning.tries(method)), []
        for tried in tries:
            changes = [*(settings or []), *overrides(entry, partition, method, params.tuning, tried)]
            name = ",".join(f"{field}={value}" for field, value in tried.items())
            metrics = federate(
                f"{partition}-validation", method, params.tuning.seed, settings=changes, root=root,
                out=str(home / partition / method / name), sweep="tune",
            )  # fmt: skip
            scores.append(metrics["local_accuracy"])
            rows.append({"method": method, **tried, "validation_accuracy": scores[-1]})
        chosen[method] = choose(tries, scores)
        print(f"{method}: {chosen[method]}")
        if write:
            write_choice(file, partition, method, chosen[method])
    pd.DataFrame(rows).to_csv(home / f"{partition}.csv", index=False)
    return chosen
