"""A federation: a model, training and test examples, and which client holds what."""

import json
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import torch

from fedflow.data import Examples, load_prepared
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition, load_partition


@dataclass
class Federation:
    """Everything that stays the same over the rounds, on one device."""

    model: FlatModel
    train: Examples
    test: Examples
    partition: Partition

    def open(self) -> "Federation":
        return self


@dataclass(frozen=True)
class FederationFiles:
    """The same, by path: what travels to workers, which load it once each and share the file's pages."""

    prepared: str
    partition: str
    model: str
    model_options: str = "{}"  # JSON, because only hashable paths and names are loaded once
    device: str = "cpu"
    content: str = ""  # hashes of both: files made anew at the same place are loaded anew

    def open(self) -> Federation:
        return _open(self)


@lru_cache(maxsize=2)
def _open(files: FederationFiles) -> Federation:
    dataset = load_prepared(Path(files.prepared))
    factory = partial(
        build, files.model, dataset.input_shape, dataset.num_classes, **json.loads(files.model_options)
    )
    device = torch.device(files.device)
    return Federation(
        model=FlatModel(factory, device=device),
        train=dataset.train.to(device),
        test=dataset.test.to(device),
        partition=load_partition(Path(files.partition)),
    )
