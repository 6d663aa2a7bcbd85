"""What the stages of ``dvc.yaml`` are made from, as small files: a stage runs again when its own changes.

DVC sees neither files outside the project nor which data set, network, public data or tuned values a
partition or a run uses. ``fedflow fingerprint`` writes it down below ``data/fingerprints``:

* ``files/datasets/<dataset>.json``: how the data set is prepared, and the SHA-256 of all files it is read
  from;
* ``files/losses/<partition>.json``: the SHA-256 of the partition's ``difficulty.losses``;
* ``inputs/partitions/<partition>.json``: the partition's parameters and the content of its data set;
* ``inputs/runs/<partition>/<method>.json``: method, training, run, network and data of the runs with any
  seed, and a hash of the code that the method imports from `fedflow.methods`.

Parameters are written as they are used: with defaults, and with what was tuned.
"""

import json
from pathlib import Path
from typing import Any

from fedflow.code import module_digest
from fedflow.config import Params
from fedflow.data import load_prepared, origin_sums
from fedflow.data.prepared import file_sum
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
        difficulty = params.partition(name).difficulty
        if difficulty and difficulty.losses:
            file, losses = folder / "losses" / f"{name}.json", root / difficulty.losses
            known = {key: value for key, value in _sums(file).items() if key == difficulty.losses}
            found = {difficulty.losses: file_sum(losses)} if losses.is_file() else {}
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
            "losses": _sums(root / FOLDER / "files" / "losses" / f"{partition}.json"),
        }
        for name in params.grid.methods:
            method, training = params.method(name, partition)
            public = params.public(name, partition)
            files[folder / "runs" / partition / f"{name}.json"] = {
                "data": hashes[entry.dataset],
                "public": hashes[public] if public else None,
                "model": params.model(entry.dataset).as_dict(),
                "method": method.as_dict(),
                "training": training.as_dict(),
                "run": params.run.as_dict(),
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
