"""Chooses hyperparameters for the synthetic problems as FedDyn's Table A.4 does: by transmissions.

    python studies/synthetic/choose.py > studies/synthetic/chosen.csv

Every combination of the grid runs once with a seed that is not reported. The target of a problem is the
lowest training loss of the worst method; each method gets the settings that need the fewest transmissions
to it. Runs are not recorded; data are made in a temporary folder.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fedflow.config import load_params
from fedflow.errors import RoundFailed
from fedflow.simulation.loop import Simulation
from fedflow.stages.experiment import Experiment
from fedflow.stages.partition import prepare_partition
from fedflow.stages.prepare import prepare_dataset

PARAMS = Path(__file__).with_name("params.yaml")
PROBLEMS = ("homogeneous", "parameters", "inputs", "sizes")
SEED = 9
EVERY: dict[str, list[Any]] = {"training.lr": [0.1, 1.0], "training.epochs": [1, 10]}
GRIDS: dict[str, dict[str, list[Any]]] = {
    "fedavg": {},
    "fedprox": {"mu": [0.01, 0.0001]},
    "scaffold": {},
    "feddyn": {"alpha": [0.1, 0.01, 0.001]},
}
VECTORS = {"scaffold": 2}  # model-sized vectors in each direction


def combinations(problem: str, method: str) -> Iterator[dict[str, Any]]:
    """The grid of one method; only where sizes differ does it matter how clients are weighted."""
    grid = {**EVERY, **GRIDS[method]}
    if problem == "sizes" and method in ("scaffold", "feddyn"):
        grid["weighting"] = ["uniform", "samples"]
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def losses(problem: str, method: str, tried: Mapping[str, Any], root: Path) -> list[float]:
    """The training loss of the mean of all devices' models, by round; short if the run diverged."""
    changes = [
        f"{name}={value}" if name.startswith("training.") else f"methods.{method}.{name}={value}"
        for name, value in tried.items()
    ]
    experiment = Experiment(load_params(PARAMS, changes), problem, method, SEED, root)
    values = []
    try:
        for report in Simulation(experiment.job, experiment.run).rounds():
            values.append(report.values.get("all_loss", float("inf")))
    except RoundFailed as error:  # a rate that is too large
        print(f"{problem}, {method}, {tried}: {error}", file=sys.stderr)
    return values or [float("inf")]


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        params, root = load_params(PARAMS), Path(folder)
        for problem in PROBLEMS:
            prepare_dataset(params, problem, root)
            prepare_partition(params, problem, root)
            curves = {
                (method, *sorted(tried.items())): losses(problem, method, tried, root)
                for method in GRIDS
                for tried in combinations(problem, method)
            }
            target = max(min(min(c) for key, c in curves.items() if key[0] == method) for method in GRIDS)
            for (method, *tried), curve in curves.items():
                reached = next((t for t, loss in enumerate(curve, 1) if loss <= target), None)
                sent = None if reached is None else reached * VECTORS.get(method, 1)
                rows.append(
                    {
                        "problem": problem,
                        "target": target,
                        "method": method,
                        "settings": dict(tried),
                        "lowest": min(curve),
                        "last": curve[-1],
                        "transmissions": sent,
                    }
                )
            print(f"{problem}: target {target:.4f}", file=sys.stderr, flush=True)
    table = pd.DataFrame(rows).sort_values(["problem", "method", "transmissions"], kind="stable")
    table.to_csv(sys.stdout, index=False, float_format="%.5g")


if __name__ == "__main__":
    main()
