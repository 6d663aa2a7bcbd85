"""What the stages of ``dvc.yaml`` are made from, as small files: a stage runs again when its own changes.

DVC sees neither files outside the project nor which data set, network, public data or tuned values a
partition or a run uses. ``fedflow fingerprint`` writes it down below ``data/fingerprints``:

* ``files/datasets/<dataset>.json``: how the data set is prepared, and the SHA-256 of all files it is read
  from;
* ``files/partitions/<partition>.json``: the SHA-256 of the files that the partition names;
* ``inputs/partitions/<partition>.json``: the partition's parameters, files, and the content of its data set;
* ``inputs/runs/<partition>/<method>.json``: the settings of the runs with any seed, the content of their
  data, and a hash of the code that the method imports from `fedflow.methods`.

Parameters are written as they are used: with defaults, and with what was tuned.
"""

import json
from pathlib import Path
from typing import Any

from fedflow.config import Params
from fedflow.data import load_prepared, origin_sums
from fedflow.data.prepared import file_sum
from fedflow.experiment import Experiment
from fedflow.identity import module_digest
from fedflow.methods import METHODS

FOLDER = Path("data") / "fingerprints"


def fingerprint_files(params: Params, root: Path = Path()) -> None:
    """Write ``files/`` for the data sets and partitions of the grid.

    A file that is gone keeps the sum of its last fingerprint: a clone of the project that pulls prepared
    data can do without the files they were read from.
    """
    folder = root / FOLDER / "files"
    files: dict[Path, Any] = {}
    for name in params.grid.datasets:
        file, entry = folder / "datasets" / f"{name}.json", params.dataset(name)
        known = {key: value for key, value in _sums(file).items() if key in entry.files()}
        files[file] = {"data": entry.as_dict(), "files": known | origin_sums(entry)}
    for name in params.grid.partitions:
        if wanted := params.partition(name).files():
            file = folder / "partitions" / f"{name}.json"
            known = {key: value for key, value in _sums(file).items() if key in wanted}
            found = {key: file_sum(root / key) for key in wanted if (root / key).is_file()}
            files[file] = {"files": known | found}
    _write(folder, files)


def fingerprint_inputs(params: Params, root: Path = Path()) -> None:
    """Write ``inputs/`` for the partitions and runs of the grid, whose data sets must be prepared."""
    folder = root / FOLDER / "inputs"
    hashes = {name: load_prepared(root / "data" / "prepared" / name).hash for name in params.grid.datasets}
    files: dict[Path, Any] = {}
    for partition in params.grid.partitions:
        entry = params.partition(partition)
        files[folder / "partitions" / f"{partition}.json"] = {
            "partition": entry.as_dict(),
            "data": hashes[entry.dataset],
            "files": _sums(root / FOLDER / "files" / "partitions" / f"{partition}.json"),
        }
        for name in params.grid.methods:
            experiment = Experiment(params, partition, name, seed=0, root=root)
            files[folder / "runs" / partition / f"{name}.json"] = {
                "settings": experiment.effective,
                "content": {dataset: hashes[dataset] for dataset in experiment.datasets},
                "code": module_digest(METHODS[name].__module__, within="fedflow.methods"),
            }
    _write(folder, files)


def _sums(file: Path) -> dict[str, str]:
    """The sums of an earlier fingerprint; none where there is no whole one."""
    try:
        return dict(json.loads(file.read_text())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write(folder: Path, files: dict[Path, Any]) -> None:
    """Write these files, and delete all others in the folder: they are of an earlier grid."""
    for file in folder.rglob("*.json"):
        if file not in files:
            file.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
