"""Trained models in MLflow: logged from code with safetensors weights, and loaded again.

A run logs ``global``, or ``cluster-<j>`` for every cluster, or a model for every level, by its name, or
``personal`` (all clients in one model). Each has three artifacts: ``weights.safetensors`` with the vectors
[n, D] and the frozen parameters, ``model.json`` with the network and the client or cluster of every row, and
the code of the networks. No pickle is written or read.
"""

import atexit
import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from threading import Lock
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from urllib.parse import urlparse

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedflow.errors import MISSING, BadInput, FedflowError, reason, unknown_name
from fedflow.models.channels import load_smaller, size_of, smaller
from fedflow.models.external import LIBRARIES
from fedflow.models.flat import FlatModel
from fedflow.models.imported import is_path
from fedflow.models.recorded import factory, rebuild
from fedflow.models.registry import libraries
from fedflow.models.start import without_start
from fedflow.models.tensors import FROZEN
from fedflow.naming import listed
from fedflow.project.terminal import say
from fedflow.project.yaml_text import yaml_file
from fedflow.tracking.addresses import database, is_server, shown
from fedflow.tracking.shared import (
    INSIDE,
    PROJECT,
    RUNS,
    SERVES,
    TAGS,
    USER,
    Owner,
    again,
    all_parents,
    every,
    experiments,
    names,
    number,
    quoted,
    registered_model,
    user_of,
)
from fedflow.tracking.shipped import package_of, write_code
from fedflow.tracking.store import Store, open_store, reporting, tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

    from fedflow.data import Dataset

NEWEST, CHAMPION = "newest", "champion"  # aliases; MLflow reserves "latest"
SCORE = "accuracy on held-out training samples"  # tag of a version, by which the champion is chosen
FORBIDDEN = str.maketrans("/:", "--")  # in registered names
CARD = ("architecture", "classes", "clients", "ids", "input_shape", "options", "parameters", "serves")
CODE = Path(__file__).with_name("served.py")
REQUIREMENTS = ("mlflow", "numpy", "safetensors", "torch")
SAVING = Lock()  # one model at a time


@dataclass(frozen=True)
class ModelCard:
    """The network of a run, the normalization of its inputs, and its origin.

    ``input_shape`` is (C, H, W) for images; ``mean`` and ``std`` have one value per channel, for pixels in
    [0, 1]. Without them (features, tokens, images with constants per domain), inputs of ``input_type`` are
    used unchanged: such images must already be normalized. ``serves`` is "global", "cluster", "level" or
    "personal", as the method declares it. ``levels`` has the clients of each level and the options of its
    network, which replace ``options``. ``held_out``: accuracies were measured on held-out training samples,
    so that they may choose the champion among the versions of a model. ``outputs`` is their number
    (0: of classes); ``several``: samples can have several labels.
    """

    architecture: str
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple | None
    std: tuple | None
    method: str
    partition: str
    serves: str = "global"
    seed: int = 0
    input_type: str = "uint8"
    options: dict[str, Any] = field(default_factory=dict)
    levels: dict[str, tuple[dict[str, Any], list[int]]] = field(default_factory=dict)
    held_out: bool = False
    outputs: int = 0
    several: bool = False

    @classmethod
    def of(
        cls,
        dataset: "Dataset",
        architecture: str,
        options: Mapping[str, Any],
        classes: tuple[str, ...] | None = None,
        **origin: Any,
    ) -> "ModelCard":
        """The card of a network for ``dataset``; ``classes`` replace the classes of the dataset."""
        normalizes = bool(dataset.mean) and not dataset.by_domain
        tokens = dataset.x_train.dtype == torch.int32
        return cls(
            architecture=architecture,
            options=dict(options),
            input_shape=dataset.input_shape,
            classes=classes or dataset.classes,
            outputs=len(classes or ()) or dataset.num_classes,
            several=dataset.train.several,
            mean=dataset.mean if normalizes else None,
            std=dataset.std if normalizes else None,
            input_type="uint8" if normalizes else "int64" if tokens else "float32",
            **origin,
        )


def load_model(
    run_id: str,
    which: str = "global",
    client: int | None = None,
    root: Path | str = ".",
    compact: bool = False,
    code: bool = False,
) -> nn.Module:
    """The trained network of a run, in evaluation mode, on the CPU.

    ``load_model(run_id)`` is the global model, ``load_model(run_id, "cluster-1")`` the model of cluster 1,
    ``load_model(run_id, "personal", client=7)`` of client 7, and ``load_model(run_id, "simple")`` of the
    level simple, if clients hold networks of several sizes. It takes inputs as in training: images scaled to
    [0, 1], minus the mean, divided by the standard deviation of the dataset (or of their domain). With
    ``compact``, its removed channels are left out, with the same outputs
    (`fedflow.models.channels.smaller`). Its attribute ``size`` has the number of its parameters, the share of
    the parameters of the run's network, and its bytes. A network at an import path is imported if
    ``params.yaml`` names it, or with ``code``.
    Raises `FedflowError` for a run, model or client that is not in the store, and names those that are.
    """
    return _loaded(*_recorded(run_id, which, client, root, code), compact)


def export_model(
    file: Path | str,
    run_id: str,
    which: str = "global",
    client: int | None = None,
    root: Path | str = ".",
    code: bool = False,
) -> nn.Module:
    """Write the compact network of `load_model` to one safetensors ``file``; returns the network.

    The header of the file holds its card as JSON: how it is built, and how its inputs were normalized.
    """
    file = Path(file)
    if file.exists() and not file.is_file():  # root would replace /dev/null
        raise BadInput("file", str(file), "the name of a file; this is a folder or a device")
    if file.exists() and file.suffix != ".safetensors":
        raise BadInput("file", str(file), "a new file, or one that ends in .safetensors")
    card, weights, row = _recorded(run_id, which, client, root, code)
    network = _loaded(card, weights, row, compact=True)
    facts = {name: value for name, value in card.items() if name not in ("ids", "clients")}
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}  # none shared
    draft = file.with_name(f".{file.name}.partial")  # a full disk must not cut an earlier file
    try:
        draft.write_bytes(save(state, {"model": json.dumps(facts | {"client": client})}))
        draft.replace(file)
    except (OSError, SafetensorError) as error:
        raise FedflowError(f"cannot write {file}: {reason(error)}") from error
    finally:
        draft.unlink(missing_ok=True)
    return network


def import_model(file: Path | str, code: bool = False) -> nn.Module:
    """The network, in evaluation mode, that `export_model` wrote; it needs no store.

    A file may name its network by an import path, and so run any code: with ``code``, it is imported.
    Raises `FedflowError` for any other file.
    """
    try:
        with safe_open(file, "pt") as content:
            card = json.loads((content.metadata() or {})["model"])
            architecture = str(card["architecture"])
            state = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        raise FedflowError(f"{file} is not a network that export_model wrote ({reason(error)})") from None
    if _is_code(architecture) and not code:
        raise BadInput("code", code, f"True, to import {architecture!r}, the network of {file}, and run it")
    return _sized(load_smaller(factory(card)(), state).eval(), card)


def _is_code(architecture: str) -> bool:
    """True for a network at an import path, which can be any function of any module."""
    return is_path(architecture) and architecture.partition(":")[0] not in LIBRARIES


def _texts(value: Any) -> Iterator[str]:
    """All texts among nested values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _check_code(architecture: str, run_id: str, root: Path | str) -> None:
    """Raise `BadInput` for an import path that params.yaml does not name: others may write to the store."""
    params = Path(root) / "params.yaml"
    if _is_code(architecture) and not (params.is_file() and architecture in _texts(yaml_file(params))):
        network = f"{architecture!r}, the network of run {run_id}, and run it; {params} does not name it"
        raise BadInput("code", False, f"True, to import {network}")


def _loaded(card: Mapping[str, Any], weights: Path, row: int, compact: bool) -> nn.Module:
    network = rebuild(card, weights, row)
    return _sized(smaller(network) if compact else network, card)


def _sized(network: Any, card: Mapping[str, Any]) -> nn.Module:
    """Set the ``size`` of a network; returns the network."""
    network.size = size_of(network, card["parameters"])
    return network


def _recorded(
    run_id: str, which: str, client: int | None, root: Path | str, code: bool
) -> tuple[dict[str, Any], Path, int]:
    """The card of a recorded model, its weights file, and the row of ``client``."""
    store = open_store(root)
    api = store.client()
    with reporting(store.uri):
        run = _run(api, run_id, store)
        logged = recorded_models(api, run)
        if which not in logged:
            raise (
                unknown_name(f"model of run {run_id}", which, logged)
                if logged
                else FedflowError(f"run {run_id} has recorded no model yet")
            )
        card_file, weights = (
            _artifact(logged[which], file, store) for file in ("model.json", "weights.safetensors")
        )
        card = _card(card_file)
    if not code:
        _check_code(str(card["architecture"]), run_id, root)
    if card["serves"] != "personal":
        if client is not None and client not in card["clients"]:
            served = f"a client that {which!r} of run {run_id} serves: {ranges(card['clients'])}"
            raise BadInput("client", client, served)
        return card, weights, 0
    if client not in card["ids"]:
        raise BadInput(
            "client", client, f"a client that {which!r} of run {run_id} holds: {ranges(card['ids'])}"
        )
    return card, weights, card["ids"].index(client)


def sought(facts: Mapping[str, Any]) -> tuple[dict[str, Any], str, dict[str, str]]:
    """Tags, experiment and inputs of the run with this ``metrics.json``, for `served_model`."""
    inputs = {name: facts[f"{name}_hash"] for name in ("data", "partition")}
    return {name: facts[name] for name in TAGS}, f"{facts['dataset']}/{facts['partition']}", inputs


def served_model(
    tags: Mapping[str, Any],
    experiment: str,
    inputs: Mapping[str, str],
    client: int | None = None,
    root: Path | str = ".",
) -> tuple[str, str]:
    """The id of this project's newest finished run, and the name of the model that it serves to ``client``.

    The run has these ``tags``, and ``inputs`` (digests by kind) among the logged ones. A client must be given
    for the model of a cluster or client. Raises `FedflowError` if no such run has recorded models, or only
    another user's or project's, or none for this client.
    """
    store = open_store(root)
    api = store.client()
    with reporting(store.uri):
        run = _newest(api, experiment, tags, {*inputs.values()}, Owner.here(store, root))
        logged = recorded_models(api, run) if run else {}
        if run is None or not logged:
            facts = [*tags.items(), *((f"{kind} with digest", value) for kind, value in inputs.items())]
            wanted = ", ".join(f"{name} {value}" for name, value in facts)
            raise FedflowError(f"no model of a finished run with {wanted} is recorded in {shown(store.uri)}")
        cards = _cards(logged, store)
    everyone = {card["serves"] for card in cards.values()} == {"global"}
    return run.info.run_id, next(iter(cards)) if everyone and client is None else _serving(cards, client)


def model_called(run_id: str, name: str, root: Path | str = ".") -> tuple[str, int | None]:
    """The model of a run that ``name`` means, and its client: "cluster-1", or the model of "client-7"."""
    if not (matched := re.fullmatch(r"client-(\d+)", name)):
        return name, None
    store, client = open_store(root), int(matched[1])
    api = store.client()
    with reporting(store.uri):
        cards = _cards(recorded_models(api, _run(api, run_id, store)), store)
    return _serving(cards, client), client


def _cards(logged: Mapping[str, "LoggedModel"], store: Store) -> dict[str, dict[str, Any]]:
    """The cards of recorded models, by name."""
    return {name: _card(_artifact(model, "model.json", store)) for name, model in logged.items()}


def _serving(cards: Mapping[str, Mapping[str, Any]], client: int | None) -> str:
    """The name of the model that a client is served."""
    for name, card in cards.items():
        if client in card["clients"]:
            return name
    served = sorted({k for card in cards.values() for k in card["clients"]})
    accepted = f"a client with a recorded model: {ranges(served)}"
    raise BadInput("client", MISSING if client is None else client, accepted)


def _card(file: Path) -> dict[str, Any]:
    """A recorded ``model.json``. Raises `FedflowError` for one that another version of fedflow wrote."""
    try:
        card = json.loads(file.read_text())
        if missing := [name for name in CARD if name not in card]:
            raise KeyError(missing[0])
        return card
    except (ValueError, KeyError, TypeError) as error:
        raise FedflowError(f"{file} is not a model of this version of fedflow ({reason(error)})") from None


def _newest(
    api: "MlflowClient", experiment: str, tags: Mapping[str, Any], digests: set[str], owner: Owner
) -> "Run | None":
    """The owner's newest finished run with these tags and inputs.

    Raises `FedflowError` if only others have recorded one.
    """
    named = [entry for name in names(experiment, "/") if (entry := api.get_experiment_by_name(name))]
    query = " and ".join([RUNS, *(f"tags.`{name}` = {quoted(str(value))}" for name, value in tags.items())])
    if not named:
        return None
    runs = every(
        api.search_runs,
        [entry.experiment_id for entry in named],
        f"{query} and attributes.status = 'FINISHED'",
        order_by=["attributes.start_time DESC"],
    )
    others = None
    for run in runs:
        if digests <= {data.dataset.digest for data in (run.inputs.dataset_inputs if run.inputs else ())}:
            if owner.keeps(run.data.tags):
                return run
            others = others or run
    if others:
        user, folder = (others.data.tags.get(name, "an unknown one") for name in (USER, PROJECT))
        raise FedflowError(
            f"only user {user}, in project {folder}, has recorded this model, in run {others.info.run_id}; "
            "fedflow.load_model and fedflow.export_model take this id"
        )
    return None


def attach(run_id: str, files: Sequence[Path], folder: str, root: Path | str = ".") -> None:
    """Log files as artifacts of a finished run, in ``folder``."""
    store = open_store(root)
    with reporting(store.uri):
        for file in files:
            store.client().log_artifact(run_id, str(file), folder)


def attach_to_sweep(sweep: str, files: Sequence[Path], folder: str, root: Path | str = ".") -> str:
    """Log files as artifacts of this user's parent runs named ``sweep`` in this project.

    Returns the reason if there are none, else an empty text. A project without a record, whose results were
    pulled, has no parent runs.
    """
    none = f"MLflow has no parent run named {sweep} of this project"
    if (file := database(tracking_uri(root))) is not None and not file.exists():
        return none
    store = open_store(root)
    with reporting(store.uri):
        api, owner = store.client(), Owner.here(store, root)
        sweeps = list(all_parents(api, experiments(api), sweep))
        mine = [parent for parent in sweeps if owner.has(parent.data.tags)]
        for parent in mine:
            for file in files:
                api.log_artifact(parent.info.run_id, str(file), folder)
    others = [run.data.tags for run in sweeps if run.data.tags.get(PROJECT, INSIDE) == owner.project]
    if others and not mine:
        users = listed(sorted({user_of(tags) for tags in others}))
        return f"the parent run named {sweep} in MLflow belongs to {users}"
    return "" if mine else none


@dataclass(frozen=True)
class Served:
    """A registered model of a run, and the clients that it serves."""

    name: str  # global, cluster-1, ...
    clients: list[int]
    registered: str
    version: int


def log_models(
    store: Store,
    run: "Run",
    card: ModelCard,
    models: Mapping[int, Tensor],
    cluster: Sequence[int],
    step: int,
    accuracy: float | None = None,
) -> list[Served]:
    """Log and register the final models of a run, except those that are already logged; returns them all.

    A kill can come between any two calls: each model is logged once, registered once and aliased, whatever
    was done before, and unfinished models are deleted. ``models`` are vectors [D] by number (0, cluster,
    level or client); ``cluster`` has the cluster of every client. The registered name is
    ``<partition>.<method>``, followed by ``.cluster-<j>`` or ``.<level>`` for models of clusters and levels.
    The alias ``newest`` names the last version, and ``champion`` the one with the highest ``accuracy`` on
    held-out samples.
    """
    served = []
    api = store.client()
    present = recorded_models(api, run)
    _delete_unfinished(api, run, present)
    network = FlatModel(factory(asdict(card), frozen=True))
    whole = network.parameters + sum(p.numel() for p in network.frozen.values())  # of levels, too
    package, needed = package_of(card.architecture), libraries(card.architecture, card.options)
    if needed:
        say(f"recorded models of {card.architecture} need {' and '.join(needed)} to be loaded")
    if package:
        say(f"recorded models do not hold the code of {card.architecture}: install {package} to load them")
    for name, ids, clients in _served(card, models, cluster):
        logged = present.get(name)
        if logged is None:
            facts = asdict(card) | {"ids": ids, "clients": clients, "parameters": whole}
            facts |= {"run_id": run.info.run_id, "package": package, "libraries": needed}
            options, _ = facts.pop("levels").get(name, ({}, []))
            facts["options"] = without_start(facts["options"]) | options
            frozen = (network.variant(**options) if options else network).frozen
            weights = {"models": torch.stack([models[i] for i in ids]).cpu()}
            weights |= {f"{FROZEN}{name}": p.contiguous() for name, p in frozen.items()}
            logged = _log(api, run, name, facts, weights, step)
        suffix = f".{name}" if card.serves in ("cluster", "level") else ""
        registered = f"{card.partition}.{card.method}{suffix}".translate(FORBIDDEN)
        tags = {"run": run.info.run_name, "seed": card.seed}
        if card.held_out and accuracy is not None:
            tags[SCORE] = accuracy
        for_whom = f"{SERVES}client{'s' * (len(clients) != 1)} {ranges(clients)}" if clients else ""
        text = f"{name} model of {card.method} on {card.partition}, seed {card.seed}: {card.architecture}"
        register = partial(_register, store, api, registered, logged, tags, text + for_whom)
        registered, version = again(register)
        served.append(Served(name, clients, registered, version))
    return served


def recorded_models(api: "MlflowClient", run: "Run") -> dict[str, "LoggedModel"]:
    """The complete models of a run, by name."""
    outputs = run.outputs.model_outputs if run.outputs else []
    models = [api.get_logged_model(output.model_id) for output in outputs]
    return {model.name: model for model in models}


def _delete_unfinished(api: "MlflowClient", run: "Run", complete: Mapping[str, "LoggedModel"]) -> None:
    """Delete the models of this run that a killed process left incomplete."""
    query = f"source_run_id = '{run.info.run_id}'"
    kept = {model.model_id for model in complete.values()}
    for model in every(api.search_logged_models, [run.info.experiment_id], query):
        if model.model_id not in kept:
            api.delete_logged_model(model.model_id)


def _served(
    card: ModelCard, models: Mapping[int, Tensor], cluster: Sequence[int]
) -> Iterator[tuple[str, list[int], list[int]]]:
    """Name, rows and clients of each model to log."""
    everyone = list(range(len(cluster)))
    if card.serves == "personal":
        yield "personal", sorted(models), sorted(models)
    elif card.serves == "level":
        for j, (level, (_, clients)) in enumerate(card.levels.items()):
            if j in models:
                yield level, [j], clients
    elif card.serves == "cluster":
        for j in sorted(models):
            yield f"cluster-{j}", [j], [k for k in everyone if cluster[k] == j]
    else:
        yield "global", [0], everyone


def _log(
    api: "MlflowClient", run: "Run", name: str, facts: dict[str, Any], weights: dict[str, Tensor], step: int
) -> "LoggedModel":
    """Log one model; it is complete when the run lists it, which is the last step."""
    from mlflow import pyfunc
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model

    logged = api.create_logged_model(
        run.info.experiment_id,
        name=name,
        source_run_id=run.info.run_id,
        params={key: str(facts[key]) for key in ("architecture", "method", "partition", "seed")},
        model_type=facts["architecture"],
    )
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = {"weights": folder / "weights.safetensors", "model": folder / "model.json"}
        files["weights"].write_bytes(save(weights))  # save_file makes files that others cannot read
        files["model"].write_text(json.dumps(facts, indent=1))
        files["code"] = write_code(folder)
        packages = (*REQUIREMENTS, *facts["libraries"])
        with _unchecked_requirements():
            pyfunc.save_model(
                folder / "model",
                python_model=str(CODE),
                artifacts={artifact: str(file) for artifact, file in files.items()},
                mlflow_model=Model(
                    artifact_path=logged.artifact_location,
                    model_uuid=logged.model_id,
                    run_id=run.info.run_id,
                    model_id=logged.model_id,
                ),
                signature=_signature(facts),
                input_example=np.zeros((1, *facts["input_shape"]), facts["input_type"]),
                pip_requirements=[f"{name}=={version(name)}" for name in packages],
            )
        api.log_model_artifacts(logged.model_id, str(folder / "model"))
    logged = api.finalize_logged_model(logged.model_id, "READY")
    api.log_outputs(run.info.run_id, [LoggedModelOutput(logged.model_id, step)])
    return logged


@contextmanager
def _unchecked_requirements() -> Iterator[None]:
    """Save requirements without MLflow's check, which reads the metadata of all packages (half a second).

    It would warn of versions other than the installed ones.
    """
    from mlflow.utils import environment

    with SAVING, patch.object(environment, "warn_dependency_requirement_mismatches", create=True):
        yield


def _signature(facts: Mapping[str, Any]) -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import DataType, ParamSchema, ParamSpec, Schema, TensorSpec

    outputs = facts["outputs"] or len(facts["classes"]) or 1
    params = [ParamSpec("probabilities", DataType.boolean, False)] if facts["classes"] else []
    if facts["serves"] == "personal":
        params.append(ParamSpec("client", DataType.long, facts["ids"][0]))
    return ModelSignature(
        inputs=Schema([TensorSpec(np.dtype(facts["input_type"]), (-1, *facts["input_shape"]))]),
        outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, outputs))]),
        params=ParamSchema(params) if params else None,  # type: ignore[arg-type]
    )


def _register(
    store: Store, api: "MlflowClient", name: str, logged: "LoggedModel", tags: Mapping[str, Any], text: str
) -> tuple[str, int]:
    """Register a model unless it is registered, and set the aliases; returns its name and version.

    A better model replaces the champion, but not a version without a score, which was made champion by hand.
    """
    # A database client resolves models:/ through MLflow's global store, which may be another one.
    source = f"models:/{logged.model_id}" if is_server(store.uri) else logged.artifact_location
    with store.lock("registry"):
        name = registered_model(api, name)
        of_run = every(api.search_model_versions, f"run_id = '{logged.source_run_id}'")
        made = next(
            (version for version in of_run if version.name == name), None
        ) or api.create_model_version(
            name,
            source,
            logged.source_run_id,
            tags=dict(tags),
            description=text,
            model_id=logged.model_id,
            await_creation_for=0,
        )
        aliases = api.get_registered_model(name).aliases
        if int(made.version) > int(aliases.get(NEWEST, 0)):
            api.set_registered_model_alias(name, NEWEST, made.version)
        if SCORE in tags:
            best: float | None = -math.inf
            if CHAMPION in aliases:
                best = number(api.get_model_version(name, aliases[CHAMPION]).tags, SCORE)
            if best is not None and float(tags[SCORE]) > best:
                api.set_registered_model_alias(name, CHAMPION, made.version)
    # MLflow's pages link a logged model to its registered version by this tag.
    link = json.dumps([{"name": name, "version": made.version}])
    api.set_logged_model_tags(logged.model_id, {"mlflow.modelVersions": link})
    return name, int(made.version)


def _run(api: "MlflowClient", run_id: str, store: Store) -> "Run":
    from mlflow.exceptions import MlflowException

    try:
        return api.get_run(run_id)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        recent = api.search_runs(experiments(api), max_results=5, order_by=["attributes.start_time DESC"])
        names = ", ".join(f"{r.info.run_id} ({r.info.run_name})" for r in recent) or "none yet"
        raise FedflowError(f"no run {run_id!r} in {shown(store.uri)}; the newest are: {names}") from error


def _artifact(logged: "LoggedModel", file: str, store: Store) -> Path:
    location = urlparse(logged.artifact_location)
    if location.scheme in ("", "file"):
        from mlflow.utils.file_utils import local_file_uri_to_path

        return Path(local_file_uri_to_path(logged.artifact_location)) / "artifacts" / file
    from mlflow.artifacts import download_artifacts

    uri = f"{logged.artifact_location.rstrip('/')}/artifacts/{file}"
    folder = mkdtemp(dir=_downloads())
    return Path(download_artifacts(artifact_uri=uri, tracking_uri=store.uri, dst_path=folder))


@cache
def _downloads() -> str:
    """A folder for downloaded files, which is deleted when the process ends."""
    folder = mkdtemp(prefix="fedflow-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def ranges(ids: Sequence[int]) -> str:
    """Sorted numbers as ranges: '0-3, 7'; '' without any."""
    cuts = [0, *(i for i in range(1, len(ids)) if ids[i] != ids[i - 1] + 1), len(ids)]
    runs = [ids[a:b] for a, b in pairwise(cuts) if a < b]
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
