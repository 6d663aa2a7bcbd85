"""A federation: a model, training and test examples, and their partition among clients."""

import functools
import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from fedflow.data import Dataset, Examples, load_prepared
from fedflow.data.prepared import file_sum
from fedflow.errors import BadInput, FedflowError
from fedflow.local.precision import use_plain_products
from fedflow.local.teacher import Teacher
from fedflow.local.trained import load_network
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition, load_partition
from fedflow.partition.after.inputs import changes
from fedflow.partition.opened import opened
from fedflow.seeding import generator
from fedflow.simulation.ahead import Ahead
from fedflow.simulation.fits import need_fit
from fedflow.simulation.graphs import Cohorts

FEATURES, INCEPTION = "run.features", "run.inception"


@dataclass
class Federation:
    """Everything that stays the same over the rounds, on one device."""

    model: FlatModel
    train: Examples
    test: Examples
    partition: Partition
    public: Examples | None = None  # the server's own data
    inputs: Mapping[str, Any] = field(default_factory=dict)  # of training (`Reads`)
    features: Teacher | None = None  # its features measure generated images
    shipped: int = 0  # bytes of the networks among them, which every client receives once
    own: Examples | None = None  # the test examples as clients have them, if their inputs differ
    cohorts: Cohorts = field(default_factory=Cohorts, init=False, repr=False)  # captured CUDA graphs
    ahead: Ahead = field(default_factory=Ahead, init=False, repr=False)  # batches of the next round

    def __post_init__(self) -> None:
        use_plain_products()

    @property
    def own_test(self) -> Examples:
        """The examples that test pools index: the training split if clients hold out parts of it."""
        if self.partition.held_out:
            return self.train
        return self.test if self.own is None else self.own

    @property
    def labeled(self) -> bool:
        """True if every sample has one label."""
        return self.train.labeled

    @functools.cached_property
    def complete(self) -> tuple[Examples, np.ndarray]:
        """The examples and rows of the complete test set, or of all held-out samples while tuning."""
        if self.partition.params.get("validation"):
            return self.train, np.unique(self.partition.pool_indices)
        return self.test, np.arange(len(self.test))

    @property
    def mean_samples(self) -> float:
        """Mean number of training samples of a client that takes part."""
        clients = self.partition.training_clients
        return float(self.partition.offsets[clients]) / clients

    def open(self) -> "Federation":
        return self


@dataclass(frozen=True)
class Stored:
    """A data folder: its path on the machine that started the run, and the hash of its content.

    A worker on another machine also looks in its own data folder, `FEDFLOW_CACHE` (default: ``data`` in its
    working directory), by hash and by the last names of the path (``prepared/digits``,
    ``partitions/digits-dir/3``).
    """

    path: str
    hash: str

    def folders(self) -> list[Path]:
        """Folders that may hold the content, the likeliest first."""
        cache, path = Path(os.environ.get("FEDFLOW_CACHE") or "data").resolve(), Path(self.path)
        named = [cache.joinpath(*path.parts[-count:]) for count in (2, 3)]
        return list(dict.fromkeys([path, cache / self.hash, *named]))


@dataclass(frozen=True)
class StoredInput:
    """A central network that training reads (`Reads`), or its ``losses`` on all samples."""

    name: str
    stored: Stored
    losses: bool = False
    field: str = field(default="", compare=False)


@dataclass(frozen=True)
class FederationFiles:
    """A federation by content, as it is sent to workers; each loads it once and shares the file's pages."""

    prepared: Stored
    partition: Stored
    model: str
    model_options: str = "{}"  # JSON, because only hashable paths and names are loaded once
    device: str = "cpu"
    convolution: str = "matmul"  # of vmapped cohorts
    public: Stored | None = None  # another prepared dataset, for the server
    noise: int = 0  # number of random inputs that are the server's data instead
    inputs: tuple["StoredInput", ...] = ()  # of training, from central networks
    features: Stored | None = None  # a central network whose features measure generated images
    inception: Stored | None = None  # or weights of Inception v3
    start: Stored | None = None  # the first values of the network

    def open(self) -> Federation:
        """Load the content. Raises `FedflowError` if it is missing here or damaged."""
        return _open(self)


class _Content(Protocol):
    @property
    def hash(self) -> str: ...


C = TypeVar("C", bound=_Content)


def found(stored: Stored, load: Callable[[Path], C]) -> C:
    """The result of ``load`` from the first folder with this content; other content is not accepted."""
    if not stored.hash:  # it was never made: ``load`` raises the error
        return load(Path(stored.path))
    reasons = []
    for folder in stored.folders():
        try:
            content = load(folder)
        except FedflowError as error:
            reasons.append(f"{error}" if folder.is_dir() else f"there is no {folder}")
            continue
        if content.hash == stored.hash:
            return content
        reasons.append(f"{folder} has content {content.hash}")
    raise FedflowError(
        f"{socket.gethostname()} lacks content {stored.hash}: {'; '.join(reasons)}. "
        f"Copy {stored.path} to {stored.folders()[1]} (FEDFLOW_CACHE sets where), share it, or `dvc pull` it"
    )


def _load_whole(folder: Path) -> Dataset:
    return load_prepared(folder, verify=True)


@functools.lru_cache(maxsize=2)
def _open(files: FederationFiles) -> Federation:
    dataset, partition = found(files.prepared, _load_whole), found(files.partition, load_partition)
    classes = partition.classes or dataset.num_classes
    options = json.loads(files.model_options)
    if files.start:
        options["start"] = str(_file(files.start, "model.start").path)
    factory = functools.partial(build, files.model, dataset.input_shape, classes, **options)
    device = torch.device(files.device)
    examples = opened(dataset, partition)
    train = examples.train.to(device)
    public = found(files.public, _load_whole).train.to(device) if files.public else None
    if files.noise:
        public = random_examples(train, files.noise)
    elif public is None and len(partition.public):
        public = train.only(torch.as_tensor(partition.public, device=device))
    model = FlatModel(factory, device=device, convolution=files.convolution)
    need_fit(model, train, files.model, partition.classes or len(dataset.classes))
    inputs, shipped = dict[str, Any](), dict[str, int]()
    for needed in files.inputs:
        network = found(needed.stored, load_network)
        network.need_data(dataset.hash, needed.field)
        # A network may correct noisy labels, but its losses on clean and noisy samples differ.
        noisy = partition.train_labels is not None or bool(changes(partition.params))
        changed = noisy if needed.losses else partition.classes is not None
        need_labels(needed.field, network.facts["name"], changed=changed)
        inputs[needed.name] = network.read(needed.losses, device, model.dtype)
        shipped[network.hash] = network.size
    features = found(files.features, load_network) if files.features else None
    if features:
        features.need_data(dataset.hash, FEATURES)
    return Federation(
        model=model,
        train=train,
        test=examples.test.to(device),
        partition=partition,
        public=public,
        inputs=inputs,
        features=features.teacher(device) if features else _inception(files.inception, device),
        shipped=sum(shipped.values()),
        own=None if examples.own is None else examples.own.to(device),
    )


@dataclass(frozen=True)
class _File:
    """A file, and the SHA-256 of its content."""

    path: Path
    hash: str


def _file(stored: Stored, field: str) -> _File:
    """This file, or its copy on this machine. Raises `BadInput` of ``field`` if it was never there."""
    if not stored.hash:
        raise BadInput(field, stored.path, "a file; there is none")
    return found(stored, lambda path: _File(path, file_sum(path) if path.is_file() else ""))


def _inception(stored: Stored | None, device: torch.device) -> Teacher | None:
    """Inception v3 with the weights of this file, if any."""
    if stored is None:
        return None
    from fedflow.models.inception import load_inception  # torchvision, which is slow to import

    file = _file(stored, INCEPTION)
    return Teacher(*load_inception(file.path, INCEPTION, device))


def need_labels(field: str, name: str, changed: bool) -> None:
    """Raise `BadInput` of ``field`` if a partition ``changed`` labels or inputs of a network's training."""
    if changed:
        accepted = "null, as this partition changes the labels or inputs that the network was trained on"
        raise BadInput(field, name, accepted)


def random_examples(like: Examples, count: int) -> Examples:
    """``count`` random inputs of the shape and type of ``like``, with meaningless targets.

    Every entry is uniform: pixels over 0..255, others between the smallest and the largest in ``like``.
    """
    rng, shape = generator(0, "random examples"), (count, *like.x.shape[1:])
    low, high = (0, 255) if like.images else (like.x.min().item(), like.x.max().item())
    drawn = (
        rng.uniform(low, high, shape)
        if like.x.is_floating_point()
        else rng.integers(int(low), int(high), shape, endpoint=True)
    )
    some = like.only(torch.zeros(count, dtype=torch.int64, device=like.device))
    return Examples(torch.from_numpy(drawn).to(like.x), some.y, like.mean, like.std, some.domain)
