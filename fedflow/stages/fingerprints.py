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
* ``inputs/partitions/<partition>.json``: the partition's parameters, files and code, and the content of its
  data set and of its expert;
* ``inputs/procedures/<procedure>.json``: the settings of a procedure with any seed, the content of the data,
  files and central networks that it reads, and its code;
* ``inputs/runs/<partition>/<method>.json``: the settings of the runs with any seed, the content of their
  data and of the central networks that they read, and the code of the engine, the method and the network.

Code is recorded as a `code_digest`, parameters as used: with defaults and tuned values.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedflow.claims.sources import CLAIMS
from fedflow.config import Loaded
from fedflow.data import load_prepared, origin_sums, prepare
from fedflow.data.prepared import file_sum
from fedflow.files import central_folder, naming
from fedflow.finished.outcomes import write_outcome
from fedflow.local.trained import load_network
from fedflow.models import ARCHITECTURES
from fedflow.project.identity import ASIDE, ENVIRONMENT, code_digest, environment, modules_of
from fedflow.report.sources import TRIED, score_files, templates
from fedflow.simulation.extensions.all_extensions import registered_modules
from fedflow.stages.central_network import network_code
from fedflow.stages.experiment import Experiment
from fedflow.stages.federate import perform
from fedflow.stages.partition import partition_code
from fedflow.stages.procedure import ProcedureRun, procedure_code

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
        chain = params.networks(name)
        files[folder / "central" / f"{name}.json"] = {
            "settings": {each: params.network(each).as_dict() for each in chain},
            "code": {each: network_code(params, each) for each in chain},
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
    weights = [each for cell in _cells(params) if (each := _weights(params, cell))]
    files[file] = {
        "files": _sums_of(weights, root, file),
        "code": code_digest(__name__, aside=()),
        "partitions": {name: partition_code(params.partition(name)) for name in params.grid.partitions},
        "runs": {name: _run_code(params, *name.split("/")) for name in _cells(params)},
        "procedures": {
            name: [procedure_code(params, name), _outcome_code(params, name)]
            for name in params.grid.procedures
        },
    }
    _write(folder, files)


def fingerprint_inputs(params: Loaded, root: Path = Path()) -> None:
    """Write ``inputs/`` for the partitions and runs of the grid.

    Their data sets must be prepared, and their central networks trained.
    """
    folder = root / FOLDER / "inputs"
    hashes = {name: load_prepared(root / "data" / "prepared" / name).hash for name in params.grid.datasets}
    networks = {name: load_network(central_folder(root, name)).hash for name in params.grid.central}
    weighed = _sums(root / FOLDER / "files" / "stages" / "inputs.json")
    files: dict[Path, Any] = {}
    for name in params.grid.partitions:
        entry, expert = params.partition(name), params.expert(name)
        files[folder / "partitions" / f"{name}.json"] = {
            "partition": entry.as_dict(),
            "data": hashes[entry.dataset],
            "expert": expert and networks[expert],
            "files": _sums(root / FOLDER / "files" / "partitions" / f"{name}.json"),
            "code": partition_code(entry),
        }
    for name in _cells(params):
        partition, method = name.split("/")
        experiment = Experiment(params, partition, method, seed=0, root=root)
        weights = _weights(params, name)
        files[folder / "runs" / f"{name}.json"] = {
            "settings": experiment.effective,
            "content": {dataset: hashes[dataset] for dataset in experiment.datasets},
            "networks": {field: networks[name] for field, name in experiment.read_networks.items()},
            "weights": weights and weighed.get(weights),
            "code": _run_code(params, partition, method),
        }
    for name in params.grid.procedures:
        run = ProcedureRun(params, name, seed=0, root=root)
        files[folder / "procedures" / f"{name}.json"] = {
            "settings": run.effective,
            "content": {dataset: hashes[dataset] for dataset in run.effective["data"]},
            "partitions": {
                each: files[folder / "partitions" / f"{each}.json"]
                for each in run.procedure.inputs().partitions
            },
            "networks": {each: networks[each] for each in run.procedure.inputs().networks},
            "files": _sums(root / FOLDER / "files" / "procedures" / f"{name}.json"),
            "code": procedure_code(params, name),
            "outcome": _outcome_code(params, name),
        }
    _write(folder, files)


def _cells(params: Loaded) -> list[str]:
    """``<partition>/<method>`` of all runs of the grid."""
    return [f"{partition}/{method}" for partition in params.grid.partitions for method in params.grid.methods]


def _weights(params: Loaded, cell: str) -> str | None:
    """The file of weights of Inception v3 that the runs of a cell read, if any."""
    partition, method = cell.split("/")
    return params.run_of(method, partition).inception


def _run_code(params: Loaded, partition: str, method: str) -> dict[str, Any]:
    """The code of a run, and the options that are part of its architecture."""
    network = ARCHITECTURES[params.model(params.partition(partition).dataset).name]
    settings = params.method(method, partition)
    modules = (*modules_of(*settings), *registered_modules(), network.build.__module__)
    code = code_digest(perform.__module__, *modules)
    return {"digest": code, "network": network.options}


def _outcome_code(params: Loaded, name: str) -> str:
    """The code of the files of an outcome, pictures included, which no number depends on."""
    aside = tuple(part for part in ASIDE if part != "pictures")
    return code_digest(write_outcome.__module__, *modules_of(params.procedure(name)), aside=aside)


def _sums_of(wanted: Collection[str], root: Path, file: Path) -> dict[str, str]:
    """The SHA-256 of each of these files; of a deleted one, that in ``file``, an earlier fingerprint."""
    known = {name: value for name, value in _sums(file).items() if name in wanted}
    return known | {name: file_sum(root / name) for name in wanted if (root / name).is_file()}


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
