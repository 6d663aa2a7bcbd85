"""What a partition scheme is, and the registry of schemes."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from fedflow.errors import BadInput, unknown_name
from fedflow.settings import Settings, option

Indices = list[np.ndarray]  # one sorted int64 array of sample positions per client


class Scheme(Settings):
    """Base of all schemes: typed parameters and one pure function, `split`."""

    section: ClassVar[str] = "partition"
    name: ClassVar[str] = ""

    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Indices:
        """Positions of every client's training samples, given ``labels`` [n] with values 0..K-1."""
        raise NotImplementedError

    def planted(self, clients: int) -> np.ndarray | None:
        """The planted group of every client [N], where the scheme plants groups."""
        return None


SCHEMES: dict[str, type[Scheme]] = {}

S = TypeVar("S", bound=type[Scheme])


def register(name: str) -> Callable[[S], S]:
    """Class decorator: make a scheme known by ``name``."""

    def add(cls: S) -> S:
        cls.name = name
        SCHEMES[name] = cls
        return cls

    return add


class PartitionParams(Settings):
    """One entry of ``partitions``: the shared fields, and beside them the parameters of the scheme."""

    section: ClassVar[str] = "partition"
    dataset: str = option(doc="a name under data")
    scheme: str = option(doc="how clients get their samples")
    clients: int = option(doc="number of clients", symbol="N", ge=1)
    seed: int = option(0, "seed of every random choice", ge=0)
    min_train: int = option(1, "every client must get at least so many training samples", ge=1)
    parameters: dict = option(factory=dict, doc="parameters of the scheme")

    @classmethod
    def parse(cls, values: Mapping[str, Any], section: str | None = None) -> Self:
        """Build from the flat mapping of ``params.yaml``; unknown parameters raise `BadInput`."""
        section = cls.section if section is None else section
        if not isinstance(values, Mapping):
            raise BadInput(section, values, "a mapping of field names to values")
        shared = {f.name for f in fields(cls)} - {"parameters"}
        own = {name: value for name, value in values.items() if name not in shared}
        parsed = super().parse(
            {k: v for k, v in values.items() if k in shared} | {"parameters": own}, section
        )
        if parsed.scheme not in SCHEMES:
            raise unknown_name(f"{section}.scheme", parsed.scheme, SCHEMES)
        scheme = SCHEMES[parsed.scheme]
        accepted = [f.name for f in fields(scheme)]
        for name in own:
            if name not in accepted:
                raise unknown_name(f"{section}.{name}", name, [*sorted(shared), *accepted])
        complete = scheme.parse(own, section=section).as_dict()  # defaults too, so that a record says it all
        return replace(parsed, parameters=complete)

    def build(self) -> Scheme:
        """The scheme with its parameters."""
        return SCHEMES[self.scheme].parse(self.parameters, section="partition")


def deal(indices: np.ndarray, owners: np.ndarray, parts: list[list[np.ndarray]]) -> None:
    """Cut ``indices`` into equal chunks and hand them to ``owners`` in order; the first get one more."""
    for owner, chunk in zip(owners, np.array_split(indices, len(owners))):
        parts[owner].append(chunk)


def collect(parts: list[list[np.ndarray]]) -> Indices:
    """Each client's chunks as one sorted array."""
    return [np.sort(np.concatenate(chunks)) if chunks else np.empty(0, np.int64) for chunks in parts]


def num_classes(labels: np.ndarray) -> int:
    """K, the number of classes of labels 0..K-1."""
    return int(labels.max()) + 1
