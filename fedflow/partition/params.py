"""One entry of ``partitions`` in ``params.yaml``."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from typing import Any, ClassVar, Self

from fedflow.errors import BadInput, unknown_name
from fedflow.partition.after.difficulty import Difficulty
from fedflow.partition.after.label_noise import LabelNoise
from fedflow.partition.scheme import SCHEMES, Scheme
from fedflow.settings import Settings, option


class PartitionParams(Settings):
    """One entry of ``partitions``: the shared fields, and the parameters of the scheme.

    The steps that any scheme can be combined with are applied in this order: ``public``, ``pieces``,
    ``difficulty``, ``newcomers``, ``holdout``, ``selection``, ``validation``, ``label_noise``.
    """

    section: ClassVar[str] = "partition"
    dataset: str = option(doc="a name under data")
    scheme: str = option(doc="how samples are divided over clients")
    clients: int | None = option(
        None, "number of clients; null = as many as the data define", symbol="N", ge=1
    )
    seed: int = option(0, "seed of every random choice", ge=0)
    public: int = option(0, "training samples that are set aside for the server, stratified by class", ge=0)
    pieces: int | None = option(
        None, "divide the data into this many pieces, of which `clients` are used", symbol="P", ge=1
    )
    pieces_used: str = option("first", "which pieces are used", choices=("first", "random"))
    difficulty: Difficulty | None = option(
        None, "deal easy samples to the first clients, hard ones to the last"
    )
    holdout: float = option(
        0.0,
        "share of a client's own samples that it is tested on; 0 = test samples of its labels",
        ge=0,
        lt=1,
    )
    holdout_stratified: bool = option(
        True, "hold out the same share of every label, instead of random samples"
    )
    selection: float = option(
        0.0,
        "share of each client's training samples held out for model selection, for methods with "
        "select_on: heldout, and for SuPerFed",
        ge=0,
        lt=1,
    )
    validation: float = option(
        0.0, "share of each client's training samples that replace the test set (tuning)", ge=0, lt=1
    )
    label_noise: LabelNoise | None = option(None, "wrong training labels")
    newcomers: float = option(0.0, "share of the clients that join after the last round", ge=0, lt=1)
    parameters: dict = option(factory=dict, doc="parameters of the scheme")

    @classmethod
    def parse(cls, values: Mapping[str, Any], section: str | None = None) -> Self:
        """Build from the flat mapping of ``params.yaml``; unknown parameters raise `BadInput`."""
        if isinstance(values, Mapping):
            shared = {f.name for f in fields(cls)} - {"parameters"}
            own = {name: value for name, value in values.items() if name not in shared}
            values = {k: v for k, v in values.items() if k in shared} | {"parameters": own}
        return super().parse(values, section)

    def validate(self) -> None:
        if self.scheme not in SCHEMES:
            raise unknown_name("partition.scheme", self.scheme, SCHEMES, "fedflow schemes")
        accepted = [f.name for f in fields(SCHEMES[self.scheme])]
        for name in self.parameters:
            if name not in accepted:
                shared = {f.name for f in fields(self)} - {"parameters"}
                raise unknown_name(f"partition.{name}", name, [*sorted(shared), *accepted])
        complete = self.built.as_dict()  # defaults too, so that results record the defaults in use
        object.__setattr__(self, "parameters", complete)
        if self.pieces is not None and (self.clients is None or self.pieces < self.clients):
            raise BadInput("partition.pieces", self.pieces, f"at least clients, which is {self.clients}")
        noise = self.label_noise
        if noise is not None and noise.protocol == "official" and not self.holdout:
            reason = "without holdout, as the test set of the data has right labels"
            raise BadInput("partition.label_noise.protocol", noise.protocol, f"clean {reason}")
        if self.pieces is None and self.pieces_used != "first":
            raise BadInput("partition.pieces_used", self.pieces_used, "first, without pieces")

    def flat(self) -> dict[str, Any]:
        """The mapping that `parse` takes."""
        values = self.as_dict()
        return values | values.pop("parameters")

    def files(self) -> list[str]:
        """The files that it is made from, except the data set, relative to the project's root."""
        losses = self.difficulty.losses if self.difficulty else None
        return [*([losses] if losses else []), *self.built.files()]

    @cached_property
    def built(self) -> Scheme:
        """The scheme with its parameters."""
        return SCHEMES[self.scheme].parse(self.parameters, section="partition")
