"""Dependencies of the stages of ``dvc.yaml`` as small files: a stage is called when its file changes.

DVC sees neither files outside the project nor defaults, tuned values and code. ``fedflow fingerprint`` writes
these files to ``data/fingerprints``; the commands themselves compare contents:

* ``environment.json``: the versions of the libraries;
* ``datasets/<dataset>.json``: the preparation of the dataset, the SHA-256 of its files, and the code;
* ``central/<network>.json``, ``partitions/<partition>.json``: the `Identity`, without the content of data and
  networks, on which the stages depend as well, of a network and its teachers, and of a partition as every
  seed of the grid draws it;
* ``grid.json``: the keys of the identities of all runs and procedures of the grid;
* ``report.json``: the code of the report, its claims, tuning and labels.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedflow.claims.sources import CLAIMS, RESULTS
from fedflow.config import Loaded
from fedflow.data import origin_sums, prepare
from fedflow.data.prepared import file_sum
from fedflow.files import naming, read_fact
from fedflow.project.code import code_digest
from fedflow.project.digest import digest
from fedflow.project.identity import ENVIRONMENT, Identity, environment
from fedflow.report.sources import TRIED, score_files, templates
from fedflow.stages.central_network import CentralRun
from fedflow.stages.grid import cells
from fedflow.stages.partition import partition_identity

MAY_BE_EMPTY = "data/central"  # a folder; DVC warns of empty ones, and git does not keep them
FOLDER = ENVIRONMENT.parent
FILES = "file "  # prefix of the names of inputs that are files


def write_fingerprints(params: Loaded, root: Path = Path()) -> None:
    """Write the files for the grid, and delete files of an earlier one.

    A deleted file keeps the checksum of its last fingerprint: a clone that pulls prepared data does not need
    the original files.
    """
    params.check_grid()
    grid, folder = params.grid, root / FOLDER
    files: dict[Path, Any] = {root / ENVIRONMENT: environment()}
    for name in grid.datasets:
        file, entry = folder / "datasets" / f"{name}.json", params.dataset(name)
        earlier = {key: value for key, value in _sums(file).items() if key in entry.files()}
        code = code_digest(prepare.__module__)
        files[file] = {"data": entry.as_dict(), "files": earlier | origin_sums(entry), "code": code}
    for name in grid.central:
        chain = params.networks(name)
        plain = {network: _plain(CentralRun(params, network, root).identity) for network in chain}
        files[folder / "central" / f"{name}.json"] = plain
    for name in grid.partitions:
        file, of = folder / "partitions" / f"{name}.json", params.divisions(name)
        made = {division: partition_identity(params, division, root) for division in of}
        files[file] = {division: _plain(identity) for division, identity in made.items()}
        files[file] |= {"files": _read(made.values(), file)}
    file = folder / "grid.json"
    identities = {cell.title: cell.identity for cell in cells(params, root, "grid")}
    keys = {title: digest(_plain(identity)) for title, identity in identities.items()}
    files[file] = {"cells": keys, "files": _read(identities.values(), file)}
    judged = [root / name for name in (CLAIMS, RESULTS) if (root / name).is_file()]
    files[folder / "report.json"] = {
        "code": code_digest("fedflow.report.page", aside=()),
        "files": {file.name: file_sum(file) for file in (*templates(), *judged)},
        "tuning": {str(file.relative_to(root)): file_sum(file) for file in score_files(root / TRIED)},
        "labels": params.labels,
        "procedures": params.procedure_entries,
    }
    for name in ("data/prepared", MAY_BE_EMPTY, "data/partitions"):  # on which stages depend
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / MAY_BE_EMPTY / ".gitkeep").touch()
    _write(folder, files)


def _plain(identity: Identity) -> dict[str, Any]:
    """The identity without its inputs: stages depend on the data themselves."""
    return replace(identity, inputs={}).as_dict()


def _read(identities: Iterable[Identity], file: Path) -> dict[str, str]:
    """The SHA-256 of all input files; for a deleted file, the one in the last fingerprint."""
    read = {name: content for identity in identities for name, content in identity.inputs.items()}
    last = _sums(file)
    return {name: content or last.get(name, "") for name, content in read.items() if name.startswith(FILES)}


def _sums(file: Path) -> dict[str, str]:
    """The checksums of an earlier fingerprint; empty if there is no valid one."""
    sums = read_fact(file, "files")
    return sums if isinstance(sums, dict) else {}


def _write(folder: Path, files: dict[Path, Any]) -> None:
    """Write these files, and delete all others in the folder, which belong to an earlier grid."""
    for file in folder.rglob("*.json"):
        if file not in files:
            file.unlink()
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        with naming(file):
            file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
