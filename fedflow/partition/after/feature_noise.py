"""Feature noise: the inputs of each client get Gaussian noise, whose level grows with the client's number.

The inputs of client k = 1, ..., N get noise of mean 0 and variance sigma k / N: pixels scaled to 0..1, before
they are normalized and without clipping; other features as they are. ``protocol: official`` follows the
authors' code: the standard deviation is sigma (k - 1) / (N - 1). N counts newcomers too.
A client is tested on samples with the same noise, so each of its test samples must be its own: set
``holdout``, or use a scheme with such test samples, such as ``natural``. The complete test set has no noise.
Noisy images are stored as float32, in four times the memory. `fedflow partitions compare` and central
networks read the inputs without noise.
Order of sampling: the numbers of a sample depend on the seed, its split and its row only.
Source: NIID-Bench (Li et al., ICDE 2022), noise-based feature imbalance.
*Differs*: the authors' code draws new noise whenever it reads a sample, for some data after normalization.

>>> FeatureNoise(sigma=0.1).deviations(2).round(3).tolist()
[0.224, 0.316]
>>> FeatureNoise(sigma=0.1, protocol="official").deviations(3).tolist()
[0.0, 0.05, 0.1]
"""

from typing import ClassVar

import numpy as np
import torch

from fedflow.data import Examples
from fedflow.errors import BadInput
from fedflow.seeding import generator
from fedflow.settings import Settings, option

AT_ONCE = 512  # samples


class FeatureNoise(Settings):
    section = "partition.feature_noise"
    pixels: ClassVar[bool] = False  # changed images are not pixels in [0, 1]
    sigma: float = option(0.1, "level of the noisiest client", symbol="sigma", ge=0, source="0.1")
    protocol: str = option(
        "paper",
        "paper = variances sigma k / N; official = standard deviations, as in the authors' code",
        choices=("paper", "official"),
    )

    def deviations(self, clients: int) -> np.ndarray:
        """The standard deviation of every client's noise [N]."""
        if self.protocol == "official":
            return self.sigma * np.arange(clients) / max(1, clients - 1)
        return np.sqrt(self.sigma * np.arange(1, clients + 1) / clients)

    def check(self, inputs: np.ndarray) -> None:
        """Raise `BadInput` unless ``inputs`` [n, ...] are images or features."""
        if inputs.dtype.kind != "f" and inputs.dtype != np.uint8:
            raise BadInput(
                self.section, self.as_dict(), "null, because the inputs of this dataset are tokens"
            )

    def variants(self, clients: int, groups: np.ndarray | None) -> np.ndarray:
        """A number for each client [N]; clients of one number share a distribution."""
        return np.arange(clients)

    def applied(
        self, examples: Examples, variant: np.ndarray, clients: int, seed: int, split: str
    ) -> Examples:
        """``examples`` with the noise of their ``variant`` [n], as normalized features; -1 is no noise."""
        x = torch.empty(examples.x.shape, dtype=torch.float32)
        for rows in torch.arange(len(x)).split(AT_ONCE):
            x[rows] = examples.inputs(rows)
        purpose, shape = f"partition/feature noise/{split}", tuple(x.shape[1:])
        for rows in torch.from_numpy(np.flatnonzero(variant >= 0)).split(AT_ONCE):
            drawn = [generator(seed, purpose, r).standard_normal(shape, np.float32) for r in rows.tolist()]
            levels = torch.from_numpy(self.deviations(clients)[variant[rows]]).float()
            levels = levels.reshape(-1, *[1] * len(shape))
            x[rows] += levels * examples.scale(rows) * torch.from_numpy(np.stack(drawn))
        return Examples(x, examples.y)
