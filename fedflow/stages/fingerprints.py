"""What the stages of ``dvc.yaml`` depend on, as small files: a stage is re-run when its file changes.

DVC sees neither files outside the project nor which data set, network, public data, tuned values or code a
partition or a run uses. ``fedflow fingerprint`` writes these files below ``data/fingerprints``:

* ``files/environment.json``: the versions of the libraries that stages use;
* ``files/datasets/<dataset>.json``: how the data set is prepared, the SHA-256 of all files it is read from,
  and the code that reads them;
* ``files/central/<network>.json``: the settings of a central network and of its teachers, and their code;
* ``files/partitions/<partition>.json``: the SHA-256 of the files that the partition names;
* ``files/stages/<stage>.json``: the code of the stages ``inputs`` and ``report``; of the former, also the
  SHA-256 of weights of Inception v3, of the latter, the claims and labels;
* ``inputs/partitions/<partition>.json``, ``inputs/procedures/<procedure>.json`` and
  ``inputs/runs/<partition>/<method>.json``: the `Identity`, of runs and procedures that with any seed.
"""

import json
from collections.abc import Collection
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from fedflow.claims.sources import CLAIMS
from fedflow.config import Loaded
from fedflow.data import load_prepared, origin_sums, prepare
from fedflow.data.prepared import file_sum
from fedflow.files import central_folder, naming
from fedflow.local.trained import load_network
from fedflow.project.code import code_digest
from fedflow.project.identity import ENVIRONMENT, Identity, environment
from fedflow.report.sources import TRIED, score_files, templates
from fedflow.stages.central_network import CentralRun
from fedflow.stages.experiment import Experiment
from fedflow.stages.partition import partition_identity
from fedflow.stages.procedure import ProcedureRun

MAY_BE_EMPTY = ("data/central", "outcomes")  # folders; DVC warns of empty ones, and git does not keep them
FOLDER = Path("data") / "fingerprints"


def fingerprint_files(params: Loaded, root: Path = Path()) -> None:
    """Write ``files/`` for the data sets and partitions of the grid.

    A deleted file keeps the checksum of its last fingerprint: a clone of the project that pulls prepared
    data does not need the files they were read from.
    """
    params.check_grid()
    folder = root / FOLDER / "files"
    files: dict[Path, Any] = {root / ENVIRONMENT: environment()}
    for name in params.grid.datasets:
        file, entry = folder / "datasets" / f"{name}.json", params.dataset(name)
        known = {key: value for key, value in _sums(file).items() if key in entry.files()}
        code = code_digest(prepare.__module__)
        files[file] = {"data": entry.as_dict(), "files": known | origin_sums(entry), "code": code}
    for name in params.grid.partitions:
        if wanted := params.partition(name).files():
            file = folder / "partitions" / f"{name}.json"
            files[file] = {"files": _sums_of(wanted, root, file)}
    for name in params.grid.central:
        chain = {each: CentralRun(params, each, root).identity for each in params.networks(name)}
        files[folder / "central" / f"{name}.json"] = {
            each: {"settings": identity.settings, "code": identity.code} for each, identity in chain.items()
        }
    for name in params.grid.procedures:
        wanted = list(params.procedure(name).inputs().files)
        file = folder / "procedures" / f"{name}.json"
        files[file] = {"files": _sums_of(wanted, root, file)}
    # Later stages depend on these folders, even if they are empty.
    for name in ("data/prepared", "data/central", "data/partitions", "results", "outcomes"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in MAY_BE_EMPTY:
        (root / name / ".gitkeep").touch()
    claims = [root / CLAIMS] if (root / CLAIMS).is_file() else []
    files[folder / "stages" / "report.json"] = {
        "code": code_digest("fedflow.report.page", aside=()),
        "files": {file.name: file_sum(file) for file in (*templates(), *claims)},
        "tuning": {str(file.relative_to(root)): file_sum(file) for file in score_files(root / TRIED)},
        "labels": params.labels,
        "procedures": params.procedure_entries,
    }
    file = folder / "stages" / "inputs.json"
    cells = product(params.grid.partitions, params.grid.methods)
    weights = {used for partition, method in cells if (used := params.run_of(method, partition).inception)}
    files[file] = {
        "files": _sums_of(weights, root, file),
        "code": code_digest(__name__, aside=()),
        "of": {name: identity.code for name, identity in _identities(params, root).items()},
    }
    _write(folder, files)


def fingerprint_inputs(params: Loaded, root: Path = Path()) -> None:
    """Write ``inputs/`` for the partitions and runs of the grid.

    Their data sets must be prepared, and their central networks trained.
    """
    folder = root / FOLDER / "inputs"
    for name in params.grid.datasets:
        load_prepared(root / "data" / "prepared" / name)  # raises the error if it is damaged
    for name in params.grid.central:
        load_network(central_folder(root, name))
    known, files = _known(root / FOLDER / "files"), dict[Path, Any]()
    for name, identity in _identities(params, root).items():
        inputs = {each: known.get(each, content) for each, content in identity.inputs.items()}
        kind, _, entry = name.partition("/")
        if kind == "runs":  # the partition is a dependency itself, as dvc.yaml makes it later
            del inputs[f"partition {entry.split('/')[0]}"]
        made = replace(identity, seed=None, inputs=inputs)
        if kind == "partitions":  # procedures make them: they are not known by content
            known[f"partition {entry}"] = made.key
        files[folder / f"{name}.json"] = made.as_dict()
    _write(folder, files)


def _identities(params: Loaded, root: Path) -> dict[str, Identity]:
    """The identities of the partitions, runs and procedures of the grid, by the name of their files."""
    grid = params.grid
    return {
        **{f"partitions/{name}": partition_identity(params, name, root) for name in grid.partitions},
        **{
            f"runs/{partition}/{method}": Experiment(params, partition, method, 0, root).identity
            for partition, method in product(grid.partitions, grid.methods)
        },
        **{f"procedures/{name}": ProcedureRun(params, name, 0, root).identity for name in grid.procedures},
    }


def _sums_of(wanted: Collection[str], root: Path, file: Path) -> dict[str, str]:
    """The SHA-256 of each of these files; of a deleted one, that in ``file``, an earlier fingerprint."""
    known = {name: value for name, value in _sums(file).items() if name in wanted}
    return known | {name: file_sum(root / name) for name in wanted if (root / name).is_file()}


def _known(folder: Path) -> dict[str, str]:
    """The checksums of `fingerprint_files`, by the names of inputs."""
    made = [
        folder / "stages" / "inputs.json",
        *folder.glob("partitions/*.json"),
        *folder.glob("procedures/*.json"),
    ]
    return {f"file {name}": value for file in made for name, value in _sums(file).items()}


def _sums(file: Path) -> dict[str, str]:
    """The checksums of an earlier fingerprint; empty if there is no valid one."""
    try:
        return dict(json.loads(file.read_text())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write(folder: Path, files: dict[Path, Any]) -> None:
    """Write these files, and delete all others in the folder, which belong to an earlier grid."""
    for file in folder.rglob("*.json"):
        if file not in files:
            file.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        with naming(file):
            file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
