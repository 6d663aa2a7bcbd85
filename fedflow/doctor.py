"""Checks of everything that an experiment needs."""

import contextlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import torch

import fedflow
from fedflow.claims.claims import load_claims
from fedflow.claims.verdicts import judge
from fedflow.config import Loaded, check_dvc, load_params
from fedflow.data import SOURCES, data_root
from fedflow.errors import FedflowError
from fedflow.files import prepared_folder, read_fact
from fedflow.local.extensions.extension import REGISTERED as EXTENSIONS
from fedflow.methods import METHODS
from fedflow.naming import counted
from fedflow.partition import SCHEMES
from fedflow.plugins import GROUP, Failures
from fedflow.procedures import PROCEDURES
from fedflow.project import distribution
from fedflow.project.arguments import check_address, check_port
from fedflow.project.distribution import extra, require
from fedflow.project.identity import ENVIRONMENT, LIBRARIES, environment
from fedflow.project.templates import KEPT, ProjectFile
from fedflow.simulation.extensions.extension import REGISTERED as RUN_EXTENSIONS
from fedflow.simulation.updates import STEPS
from fedflow.stages.experiment import experiments
from fedflow.tracking.addresses import shown
from fedflow.tracking.store import check_store

NEEDED = (*LIBRARIES, "matplotlib", "pyarrow", "safetensors")
OPTIONAL = {  # package: the extra that installs it, and what needs it
    "dvc": ("pipeline", "dvc repro and fedflow init"),
    "prefect": ("pipeline", "an engine.executor other than inline, and flows"),
    "mlflow": ("pipeline", "the record of runs"),
    "prefect-dask": ("dask", "engine.executor dask"),
    "prefect-ray": ("ray", "engine.executor ray"),
    "umap-learn": ("umap", "UMAP embeddings"),
    "h5py": ("hdf5", "sources tff and mat (version 7.3)"),
    "datasets": ("huggingface", "names on the Hub as data"),
    "optuna": ("optuna", "tuning.search random and tpe"),
}
TOOLS = {  # any of these programs, and what needs one
    "C++ compiler": (("c++", "g++", "clang++", "cl"), "engine.compile; without it, steps are not compiled"),
    "git": (("git",), "the commit of a run in the record"),
}
PORTS = {
    5000: "`fedflow ui`; use another with --port",
    4200: "`python -m flows.serve`; use another with --port",
}
LITTLE_SPACE = 2 * 2**30  # bytes


@dataclass(frozen=True)
class Finding:
    """One line of the report; ``status`` is ok, note or bad."""

    status: str
    what: str
    detail: str


def examine(root: Path = Path()) -> list[Finding]:
    """Versions, plug-ins, programs, device, data, files of the project, record, space, server, ports."""
    return [
        Finding("ok", "python", sys.version.split()[0]),
        Finding("ok", distribution.name(), f"{fedflow.__version__} in {Path(fedflow.__file__).parent}"),
        *(_package(name) for name in NEEDED),
        *_extras(),
        *(_plugin(point) for point in sorted(importlib.metadata.entry_points(group=GROUP))),
        *(_tool(name, *tool) for name, tool in TOOLS.items()),
        _device(),
        _data(),
        *_params(root),
        *(_written(root, name) for name in KEPT if (root / name).is_file()),
        *_libraries(root),
        *_claims(root),
        _store(root),
        _space(root),
        _server(),
        *(_port(number, use) for number, use in PORTS.items()),
    ]


def _package(name: str) -> Finding:
    try:
        return Finding("ok", name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding("bad", name, f"not installed; install it: `pip install {name}`")


def _extras() -> list[Finding]:
    """The packages of extras, and how to install those that are missing."""
    findings, missing = [], dict[str, None]()
    for name, (part, use) in OPTIONAL.items():
        try:
            findings.append(Finding("ok", name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            findings.append(Finding("note", name, f"not installed; only needed for {use}: extra {part}"))
            missing[part] = None
    if missing:
        findings.append(Finding("note", "extras", f"to install them: {extra(','.join(missing))}"))
    return findings


def _plugin(point: importlib.metadata.EntryPoint) -> Finding:
    """A plug-in with what it registers, or why it cannot be imported."""
    what = f"plug-in {point.name}"
    if failed := (Failures.collected or {}).get(point.name):
        return Finding("bad", what, failed)
    module = point.value.partition(":")[0].partition(".")[0]
    tables: list[Mapping[str, type]] = [METHODS, SCHEMES, PROCEDURES, EXTENSIONS, RUN_EXTENSIONS, STEPS]
    classes = [(name, cls) for table in tables for name, cls in table.items()]
    names = [name for name, cls in classes if cls.__module__.split(".")[0] == module]
    package = f"{point.dist.name} {point.dist.version}" if point.dist else module
    return Finding("ok", what, f"{package}: {', '.join(names) or 'registers nothing'}")


def _tool(name: str, programs: tuple[str, ...], use: str) -> Finding:
    for program in programs:
        if path := shutil.which(program):
            return Finding("ok", name, path)
    return Finding("note", name, f"not found; only needed for {use}")


def _port(number: int, use: str) -> Finding:
    """A port on localhost, and whether it is free."""
    try:
        check_port("port", number)
    except FedflowError:
        return Finding("note", f"port {number}", f"in use; it is the port of {use}")
    return Finding("ok", f"port {number}", "free")


def _device() -> Finding:
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        return Finding("ok", "device", f"cuda: {names}")
    return Finding("ok", "device", f"cpu with {os.cpu_count()} cores (no GPU found)")


def _data() -> Finding:
    root = data_root()
    here = [name for name, source in SOURCES.items() if source.kind != "path" and source.where(root)]
    status = "ok" if root.is_dir() else "note"
    return Finding(status, "data root", f"{root}; usable without download: {', '.join(here)}")


def _params(root: Path) -> list[Finding]:
    try:
        params = load_params(root / "params.yaml")
        cells = experiments(params, root, sweep="grid")  # checks what every cell combines
        params.check_grid()
        check_dvc(root)
    except FedflowError as error:
        return [Finding("bad", "params.yaml", str(error))]
    grid = params.grid
    partitions, seeds = counted(len(grid.partitions), "partition"), counted(len(grid.seeds), "seed")
    counts = f"{partitions} x {counted(len(grid.methods), 'method')} x {seeds}"
    counts += "" if grid.redraw == "run" else f", redraw: {grid.redraw}"
    counts += f", {counted(len(grid.central), 'central network')}" if grid.central else ""
    counts += f", procedures: {len(grid.procedures)} x {seeds}" if grid.procedures else ""
    same: dict[str, dict[str, None]] = {}
    for cell in cells:
        same.setdefault(cell.digest, {})[cell.method] = None
    shared = dict.fromkeys(", ".join(names) for names in same.values() if len(names) > 1)
    notes = [Finding("note", "grid.methods", f"the same settings under several names: {n}") for n in shared]
    return [Finding("ok", "params.yaml", counts), *notes, *_absent(params, root)]


def _absent(params: Loaded, root: Path) -> list[Finding]:
    """Files of datasets of the grid that are not there, unless these are prepared."""
    return [
        Finding("bad", f"data.{dataset}", f"there is no file {name!r}")
        for dataset in params.grid.datasets
        if not prepared_folder(root, dataset).is_dir() and not SOURCES[params.dataset(dataset).source].by_name
        for name, file in params.dataset(dataset).files().items()
        if file is not None and not file.exists()
    ]


def _written(root: Path, name: str) -> Finding:
    """A file of the project, compared with the file that this version writes."""
    file, now = ProjectFile.read(root / name), f"fedflow {fedflow.__version__}"
    by = f"written by fedflow {file.version}" if file.version else "not written by `fedflow init`"
    by += ", and edited" if file.version and file.state != "older" else ""
    says = {
        "same": f"as {now} writes it",
        "edited": f"{by}; {now} writes the same",
        "older": f"{by}; {now} writes it differently: run `fedflow init --upgrade`",
        "both": f"{by}; {now} writes it differently: `fedflow init --upgrade` shows the difference",
    }
    return Finding("ok" if file.state in ("same", "edited") else "note", name, says[file.state])


def _libraries(root: Path) -> list[Finding]:
    """Libraries whose version changed since the last `dvc repro`."""
    try:
        now = environment()
    except importlib.metadata.PackageNotFoundError:  # another finding reports it
        return []
    before = {name: read_fact(root / ENVIRONMENT, name) for name in now}
    changed = [f"{name} {old} -> {now[name]}" for name, old in before.items() if old not in (None, now[name])]
    detail = f"{', '.join(changed)} since the last `dvc repro`: the next one runs everything again"
    return [Finding("note", "libraries", detail)] if changed else []


def _claims(root: Path) -> list[Finding]:
    if not (path := root / "claims.yaml").exists():
        return []
    labels: dict[str, str] = {}
    procedures: dict[str, str] = {}
    with contextlib.suppress(FedflowError):  # that finding is about params.yaml
        params = load_params(root / "params.yaml")
        labels, entries = params.labels, params.procedure_entries
        procedures = {name: registered for name, (registered, _) in entries.items()}
    try:
        judge(claims := load_claims(path), [], labels, procedures)
    except FedflowError as error:
        return [Finding("bad", path.name, str(error))]
    return [Finding("ok", path.name, f"{len(claims)} claims")]


def _store(root: Path) -> Finding:
    try:
        require("the record of runs", "mlflow")
    except FedflowError as error:
        return Finding("note", "record", str(error))
    try:
        check_store(root)
    except FedflowError as error:
        return Finding("bad", "record", str(error))
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri:
        return Finding("ok", "record", f"MLFLOW_TRACKING_URI = {shown(uri)}")
    folder = root / "mlruns"
    try:
        with tempfile.TemporaryFile(dir=_existing(folder)):
            return Finding("ok", "record", f"{folder / 'mlflow.db'}")
    except OSError as error:
        detail = f"{folder} is not writable ({error.strerror}); fix this or set MLFLOW_TRACKING_URI"
        return Finding("bad", "record", detail)


def _space(root: Path) -> Finding:
    free = shutil.disk_usage(_existing(root)).free
    text = f"{free / 2**30:.1f} GiB free"
    return Finding("ok", "disk", text) if free > LITTLE_SPACE else Finding("note", "disk", f"only {text}")


def _existing(path: Path) -> Path:
    """The path, or its closest parent that exists."""
    path = path.resolve()
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _server() -> Finding:
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        detail = "PREFECT_API_URL is not set: runs start and share a server on localhost"
        return Finding("ok", "Prefect API", detail)
    try:
        check_address("PREFECT_API_URL", url)
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=5):
            return Finding("ok", "Prefect API", f"{url} answers")
    except FedflowError as error:
        return Finding("bad", "Prefect API", str(error))
    except (OSError, HTTPException) as error:
        detail = f"PREFECT_API_URL = {url} is not responding ({error}); start it, or unset the variable"
        return Finding("bad", "Prefect API", detail)
