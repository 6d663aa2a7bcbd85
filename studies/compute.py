"""Computes rows of ``results.csv`` by the fedflow that Python finds first; `recompute.py` calls it.

``python studies/compute.py ROOT CELLS [KEY=VALUE ...]``: CELLS is a JSON list of [kind, partition, method,
seed]; changes of the ``params.yaml`` in ROOT follow. It uses only functions that earlier commits have, too.
"""

import json
import sys
from pathlib import Path

from fedflow.config import load_params
from fedflow.errors import FedflowError
from fedflow.stages.all_stages import run_experiment
from fedflow.stages.experiment import Experiment
from fedflow.stages.grid import Cell, to_do
from fedflow.stages.procedure import ProcedureRun, run_procedure

if __name__ == "__main__":
    root, rows, *changes = sys.argv[1:]
    params = load_params(Path(root) / "params.yaml", changes)
    cells: dict[tuple[str, ...], Cell] = {}
    for kind, partition, method, seed in json.loads(rows):
        if kind == "run":
            cells[partition, method, seed] = Experiment(params, partition, method, int(seed), Path(root))
        else:
            cells[partition, seed] = ProcedureRun(params, partition, int(seed), Path(root))
    for cell in to_do(params, Path(root), [*cells.values()]):
        try:
            run_experiment(cell) if isinstance(cell, Experiment) else run_procedure(cell)
        except FedflowError as error:
            print(f"{cell.title}: {error}", file=sys.stderr)
