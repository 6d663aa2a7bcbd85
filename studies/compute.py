"""Computes rows of ``results.csv`` by the fedflow that Python finds first; `recompute.py` calls it.

``python studies/compute.py ROOT CELLS [KEY=VALUE ...]``: CELLS is a JSON list of [kind, partition, method,
seed]; changes of the ``params.yaml`` in ROOT follow. ``folders.json`` in ROOT gets the folder of results of
every cell. It uses only functions that earlier commits have, too.
"""

import json
import sys
from pathlib import Path
from typing import Any

from fedflow.config import load_params
from fedflow.errors import FedflowError
from fedflow.stages.all_stages import run_experiment
from fedflow.stages.experiment import Experiment
from fedflow.stages.grid import Cell, to_do
from fedflow.stages.procedure import ProcedureRun, run_procedure

if __name__ == "__main__":
    root, rows, *changes = sys.argv[1:]
    params = load_params(Path(root) / "params.yaml", changes)
    cells: list[Cell] = [
        Experiment(params, partition, method, int(seed), Path(root))
        if kind == "run"
        else ProcedureRun(params, partition, int(seed), Path(root))
        for kind, partition, method, seed in json.loads(rows)
    ]
    folders = [str(cell.results_folder) for cell in cells]
    (Path(root) / "folders.json").write_text(json.dumps(folders))
    left: Any = to_do(params, Path(root), [*dict(zip(folders, cells, strict=True)).values()])
    for cell in left[0] if isinstance(left, tuple) else left:  # earlier commits return only the cells
        try:
            run_experiment(cell) if isinstance(cell, Experiment) else run_procedure(cell)
        except FedflowError as error:
            print(f"{cell.title}: {error}", file=sys.stderr)
