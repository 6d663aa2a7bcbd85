"""What `fedflow.run` accepts as data, division, network and method, as objects of the engine."""

import copy
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedflow.data import Dataset, DatasetParams, Examples, is_current, load_prepared, prepare, within
from fedflow.errors import BadInput
from fedflow.files import intact
from fedflow.methods import METHODS, Method, build_method
from fedflow.methods.base import server_data
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition, PartitionParams, Samples, make_partition
from fedflow.settings import Words
from fedflow.simulation.federation import Federation, need_fit, random_examples
from fedflow.terminal import say

Data = str | Mapping[str, Any] | Dataset
Division = PartitionParams | Mapping[str, Any] | Sequence[Sequence[int] | np.ndarray]
Network = str | Mapping[str, Any] | nn.Module | Callable[[], nn.Module]

OWN = "own"  # name of data that were given as arrays
IMAGES = 28  # height from which images get a convolutional network


def cache() -> Path:
    """Where prepared data and compiled steps are kept: `FEDFLOW_CACHE`, or ``~/.cache/fedflow``."""
    return Path(os.environ.get("FEDFLOW_CACHE") or Path.home() / ".cache" / "fedflow")


def dataset(x: Any, y: Any, x_test: Any, y_test: Any, classes: Sequence[str] | None = None) -> Dataset:
    """A data set of your own arrays or tensors.

    ``x`` [n, ...]: uint8 images [n, C, H, W] or [n, H, W], which are scaled to [0, 1], float features, or int
    tokens [n, L]. ``y`` [n]: labels 0..K-1, or float targets of a regression. ``classes``: K names; default:
    the labels' numbers.

    Raises `BadInput` for shapes, types or labels that do not fit together.
    """
    inputs = [_tensor("x", x), _tensor("x_test", x_test)]
    targets = [_tensor("y", y), _tensor("y_test", y_test)]
    for name, own, labels in zip(("", "_test"), inputs, targets):
        if own.ndim < 2 or len(own) != len(labels) or not len(own):
            raise BadInput(
                f"x{name}", tuple(own.shape), f"inputs [n, ...] with n = {len(labels)} > 0 targets"
            )
        if own.is_floating_point() and not own.isfinite().all():
            raise BadInput(f"x{name}", float("nan"), "finite numbers")
    if inputs[0].shape[1:] != inputs[1].shape[1:] or inputs[0].dtype != inputs[1].dtype:
        accepted = f"inputs of the shape {tuple(inputs[0].shape[1:])} and type of x"
        raise BadInput("x_test", tuple(inputs[1].shape[1:]), accepted)
    images = inputs[0].dtype == torch.uint8
    if images and inputs[0].ndim == 3:
        inputs = [own.unsqueeze(1) for own in inputs]
    if images and (inputs[0].ndim != 4 or inputs[0].shape[1] not in (1, 3)):
        raise BadInput("x", tuple(inputs[0].shape), "uint8 images [n, H, W] or [n, C, H, W] with C = 1 or 3")
    kind = torch.uint8 if images else torch.float32 if inputs[0].is_floating_point() else torch.int32
    whole = not targets[0].is_floating_point()
    names: tuple[str, ...] = ()
    if whole:
        labels = torch.cat([own.flatten() for own in targets]).long()
        count = len(classes) if classes is not None else int(labels.max()) + 1
        if int(labels.min()) < 0 or int(labels.max()) >= count:
            raise BadInput("y", int(labels.max() if labels.min() >= 0 else labels.min()), f"0 to {count - 1}")
        names = tuple(classes) if classes is not None else tuple(map(str, range(count)))
    elif classes is not None:
        raise BadInput("classes", list(classes), "None with real targets")
    content = hashlib.blake2b(digest_size=8)
    for tensor in (*inputs, *targets):
        content.update(np.ascontiguousarray(tensor.numpy()).data)
    own_kind = torch.int64 if whole else torch.float32
    depth = inputs[0].shape[1] if images else 0
    return Dataset(
        OWN, inputs[0].to(kind), targets[0].to(own_kind), inputs[1].to(kind), targets[1].to(own_kind),
        names, (0.0,) * depth, (1.0,) * depth, content.hexdigest(),
    )  # fmt: skip


def _tensor(name: str, values: Any) -> Tensor:
    try:
        found = torch.as_tensor(np.asarray(values) if not isinstance(values, Tensor) else values)
    except (TypeError, ValueError) as error:
        raise BadInput(name, type(values).__name__, "an array or tensor of numbers") from error
    return found.detach().cpu()


def data_params(data: Data) -> DatasetParams:
    """Named data as an entry of ``data`` in params.yaml."""
    if not isinstance(data, str | Mapping):
        accepted = "the name of a source, a mapping, or fedflow.dataset(x, y, x_test, y_test)"
        raise BadInput("data", Words(type(data).__name__), accepted)
    return DatasetParams.parse({"source": data} if isinstance(data, str) else dict(data), section="data")


def prepared(data: Data, telling: bool = False) -> Dataset:
    """The samples; named data are prepared once, and cached.

    Their notes are printed when they are prepared, and with ``telling``.
    """
    if isinstance(data, Dataset):
        return data
    wanted = data_params(data)
    digest = hashlib.blake2b(json.dumps(wanted.as_dict(), sort_keys=True).encode(), digest_size=6).hexdigest()
    folder = cache() / "notebook" / f"{wanted.source}-{digest}"
    old = not is_current(folder, wanted) or intact(lambda: load_prepared(folder, verify=True)) is None
    if old:
        with within("data"):
            prepare(wanted, folder)
    samples = load_prepared(folder)
    for note in samples.notes if old or telling else ():
        say(f"{samples.name}: {note}")
    return samples


def scheme(name: str, **settings: Any) -> PartitionParams:
    """A division of the data among clients: the scheme ``name`` with its parameters, ``clients``, ``seed``,
    ``holdout``, ... as an entry of ``partitions`` in params.yaml has them.

    `fedflow.dirichlet(alpha=0.1, clients=20)` is ``scheme("dirichlet", alpha=0.1, clients=20)``.
    """
    return PartitionParams.parse({"dataset": OWN, "scheme": name, **settings})


def divided(division: Division, data: Dataset) -> Partition:
    """The clients' samples: by a scheme, or as lists of training positions, one per client.

    With lists, a client is tested on all test samples of the labels that it trains on.
    """
    if isinstance(division, PartitionParams):
        return make_partition(division, Samples.of(data), data.hash)
    rows = [np.sort(own) for own in _lists(division)]
    for k, own in enumerate(rows):
        if own.dtype.kind not in "iu" or own.ndim != 1 or own[0] < 0 or own[-1] >= len(data.y_train):
            accepted = f"positions of training samples, whole numbers from 0 to {len(data.y_train) - 1}"
            raise BadInput(f"partition[{k}]", Words(np.array2string(own, threshold=6)), accepted)
    values, counts = np.unique(np.concatenate(rows), return_counts=True)
    if (counts > 1).any():
        raise BadInput("partition", int(values[counts.argmax()]), "every training sample at most once")
    labels, tested = data.y_train.numpy(), data.y_test.numpy()
    if labels.ndim > 1 or labels.dtype.kind == "f":
        pools, own_pools = [np.arange(len(tested))], [np.array([0])] * len(rows)
    else:
        pools = [np.flatnonzero(tested == label) for label in range(data.num_classes)]
        own_pools = [np.unique(labels[own]) for own in rows]
    return Partition.from_lists(rows, pools, own_pools, dataset_hash=data.hash)


def _lists(division: Any) -> list[np.ndarray]:
    """One array per client, each with at least one number."""
    try:
        rows = [np.asarray(own) for own in division] if not isinstance(division, str | bytes) else []
    except (TypeError, ValueError):
        rows = []
    if not rows or any(own.ndim == 0 or own.size == 0 for own in rows):
        shown = division if isinstance(division, str | int | float) else Words(type(division).__name__)
        accepted = "a scheme such as fedflow.dirichlet(clients=20), or a list of row numbers per client"
        raise BadInput("partition", shown, accepted)
    return rows


def built_method(method: str | Method | type[Method] | Mapping[str, Any]) -> Method:
    """A method by name, as an object, or as a mapping with ``method`` and its hyper-parameters."""
    if isinstance(method, Method):
        return method
    if isinstance(method, type) and issubclass(method, Method):
        return method.parse({}, section="method")
    if isinstance(method, str):
        return build_method(method)
    if isinstance(method, Mapping) and "method" in method:
        return build_method(method["method"], {k: v for k, v in method.items() if k != "method"})
    raise BadInput("method", method, "a name such as 'ditto', or an object such as fedflow.Ditto(lam=1.0)")


def titles(method: Method) -> tuple[str, str]:
    """Name and label; of a class that is not registered, its Python name, as it may inherit both."""
    registered = METHODS.get(method.name) is type(method)
    return (method.name, method.label) if registered else (type(method).__name__,) * 2


def default_network(data: Dataset) -> str:
    """The network where none is named, by the kind of the inputs and targets."""
    if not data.classes:
        return "linear"
    if data.y_train.ndim > 1 or not (data.x_train.is_floating_point() or data.x_train.dtype == torch.uint8):
        return "stacked_lstm" if data.y_train.ndim > 1 else "char_lstm"
    image = len(data.input_shape) == 3 and min(data.input_shape[1:]) >= IMAGES
    return "lenet5" if image else "mlp"


def network_entry(network: str | Mapping[str, Any] | None, default: str) -> dict[str, Any]:
    """The network as an entry of ``models`` in params.yaml."""
    if not isinstance(network, Mapping):
        return {"name": default if network is None else network, "options": {}}
    if "name" not in network:
        raise BadInput("model", dict(network), "a mapping with the name of an architecture")
    options = {name: value for name, value in network.items() if name not in ("name", "options")}
    return {"name": network["name"], "options": {**network.get("options", {}), **options}}


def flat_model(network: Network | None, data: Dataset, device: torch.device, convolution: str) -> FlatModel:
    """The network: by name, as a mapping with ``name`` and options, as a module, or as what makes a module.

    A module itself is the first model for every seed; what makes one is called once per seed.
    """
    if network is None or isinstance(network, str | Mapping):
        entry = network_entry(network, default_network(data))
        factory: Callable[[], nn.Module] = partial(
            build, entry["name"], data.input_shape, data.num_classes, **entry["options"]
        )
    elif isinstance(network, nn.Module):
        factory = partial(copy.deepcopy, network)
    elif callable(network):
        factory = network
        if not isinstance(made := factory(), nn.Module):
            raise BadInput("model", type(made).__name__, "a function that returns a torch.nn.Module")
    else:
        raise BadInput(
            "model", network, "the name of a network, a torch.nn.Module, or a function that makes one"
        )
    return FlatModel(factory, device=device, convolution=convolution)


def federation(
    samples: Dataset, division: Division, network: Network | None, method: Method, device: str,
    convolution: str,
) -> Federation:  # fmt: skip
    """All that stays the same over the rounds."""
    where = torch.device(device)
    partition = divided(division, samples)
    if partition.classes:
        samples = replace(samples, classes=tuple(map(str, range(partition.classes))))
    model = flat_model(network, samples, where, convolution)
    train = samples.train.relabelled(partition.train_labels).to(where)
    need_fit(model, train, model.title)
    return Federation(
        model, train, samples.test.relabelled(partition.test_labels).to(where), partition,
        _public(method, train, partition),
    )  # fmt: skip


def _public(method: Method, train: Examples, partition: Partition) -> Examples | None:
    """The server's own inputs, of methods that use some."""
    declared = server_data(method)
    if declared.dataset:
        return prepared(declared.dataset).train.to(train.device)
    if declared.noise:
        return random_examples(train, declared.noise)
    if len(partition.public):
        return train.only(torch.as_tensor(partition.public, device=train.device))
    return None


def described(
    data: Data, division: Division, network: Network | None, whole: Federation
) -> dict[str, dict[str, Any]]:
    """The settings of data, division and network; content hashes of those that have no settings."""
    about = {"data": {"hash": whole.partition.dataset_hash}, "partition": {"hash": whole.partition.hash}}
    if not isinstance(data, Dataset):
        about["data"] = data_params(data).flat()
    if isinstance(division, PartitionParams):
        about["partition"] = {k: v for k, v in division.flat().items() if k != "dataset"}
    if network is None or isinstance(network, str | Mapping):
        entry = network_entry(network, whole.model.title)
        return about | {"model": {"name": entry["name"], **entry["options"]}}
    content = hashlib.blake2b(whole.model.architecture.encode(), digest_size=4)
    content.update(whole.model.init(0).cpu().numpy().data)
    return about | {"model": {"name": whole.model.title, "hash": content.hexdigest()}}
