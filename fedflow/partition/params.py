"""One entry of ``partitions`` in ``params.yaml``."""

from collections.abc import Mapping
from typing import ClassVar

from fedflow.choice import Choice
from fedflow.errors import BadInput
from fedflow.partition.after.difficulty import Difficulty
from fedflow.partition.after.feature_noise import FeatureNoise
from fedflow.partition.after.label_noise import LabelNoise
from fedflow.partition.after.transforms import Transforms
from fedflow.partition.scheme import SCHEMES, Scheme
from fedflow.settings import option

UNDRAWN = "run, as no seed changes this division"  # the accepted way to redraw it


class PartitionParams(Choice):
    """One entry of ``partitions``: the shared fields, and the parameters of the scheme.

    Steps that combine with any scheme are applied in this order: ``public``, ``pieces``, ``difficulty``,
    ``newcomers``, ``holdout``, ``selection``, ``validation``, ``label_noise``, ``transforms``,
    ``feature_noise``.
    """

    section: ClassVar[str] = "partition"
    key: ClassVar[str] = "scheme"
    command: ClassVar[str] = "fedflow schemes"
    dataset: str = option(doc="a name under `data`")
    scheme: str = option(doc="how samples are divided among clients")
    clients: int | None = option(None, "number of clients; null = as defined by the data", symbol="N", ge=1)
    seed: int = option(0, "seed of every random choice", ge=0)
    public: int = option(0, "training samples set aside for the server, stratified by class", ge=0)
    pieces: int | None = option(
        None, "divide the data into this many pieces and use `clients` of them", symbol="P", ge=1
    )
    pieces_used: str = option("first", "which pieces are used", choices=("first", "random"))
    difficulty: Difficulty | None = option(
        None, "give easy samples to the first clients and hard ones to the last"
    )
    holdout: float = option(
        0.0, "share of each client's samples used to test it; 0 = test samples of its labels", ge=0, lt=1
    )
    holdout_stratified: bool = option(True, "hold out the same share of every label; false = random samples")
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
    transforms: Transforms | None = option(None, "transforms of torchvision on the images of each client")
    feature_noise: FeatureNoise | None = option(None, "Gaussian noise on the inputs of each client")
    newcomers: float = option(0.0, "share of the clients that join after the last round", ge=0, lt=1)
    parameters: Scheme = option(factory=dict, doc="parameters of the scheme")

    @classmethod
    def known(cls) -> Mapping[str, type[Scheme]]:
        return SCHEMES

    def validate(self) -> None:
        if self.pieces is not None and (self.clients is None or self.pieces < self.clients):
            raise BadInput("partition.pieces", self.pieces, f"at least clients, which is {self.clients}")
        noise = self.label_noise
        if noise is not None and noise.protocol == "official" and not self.holdout:
            reason = "without holdout, as the test set of the data has right labels"
            raise BadInput("partition.label_noise.protocol", noise.protocol, f"clean {reason}")
        if self.pieces is None and self.pieces_used != "first":
            raise BadInput("partition.pieces_used", self.pieces_used, "first, without pieces")

    @property
    def selects(self) -> bool:
        """True if clients may hold out samples for model selection."""
        return self.selection > 0 or self.parameters.by_row

    def files(self) -> list[str]:
        """The files it is made from, except the dataset, relative to the project's root."""
        losses = self.difficulty.losses if self.difficulty else None
        return [*([losses] if losses else []), *self.parameters.files()]
