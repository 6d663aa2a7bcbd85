"""What the server gets of the clients in one round: updates in client order, and exact means of them."""

import numpy as np
import torch
from torch import Tensor

from fedflow.data import Examples
from fedflow.models.flat import FlatModel
from fedflow.simulation.exact import ExactSum
from fedflow.simulation.job import ClientResult, Trained


class Gathered:
    """The updates of one round in client order (`fedflow.methods.base.Cohort`)."""

    def __init__(
        self,
        results: list[Trained],
        model: FlatModel,
        sizes: np.ndarray,
        rng: np.random.Generator,
        public: Examples | None = None,
    ) -> None:
        self.model, self.sizes, self.rng, self.public = model, sizes, rng, public
        self.sent: list[ClientResult] = sorted((s for r in results for s in r.sent), key=lambda s: s.client)
        self.failures = sorted(failure for r in results for failure in r.failures)
        self.ids = [s.client for s in self.sent]
        self.groups = [s.group for s in self.sent]
        self._sums: dict[tuple[str, int], ExactSum] = {}
        for result in results:
            for key, part in result.sums.items():
                self._sums.setdefault(key, ExactSum()).merge(part)

    @property
    def clients(self) -> int:
        return len(self.sizes)

    def mean(self, name: str, group: int | None = None, weights: np.ndarray | None = None) -> Tensor:
        total = ExactSum()
        if weights is None:
            for (key, number), part in sorted(self._sums.items(), key=lambda item: item[0]):
                if key == name and group in (None, number):
                    total.merge(part)
        for sent, weight in zip(self.sent, self.weights if weights is None else weights):
            if weight and name in sent.vectors and group in (None, sent.group):
                total.add(sent.vectors[name], float(weight))
        return total.mean(self.model.dtype)

    def vectors(self, name: str) -> list[Tensor]:
        return [sent.vectors[name] for sent in self.sent]

    def stack(self, name: str) -> Tensor:
        return torch.stack(self.vectors(name))

    def scalars(self, name: str) -> np.ndarray:
        return np.array([sent.scalars[name] for sent in self.sent])

    @property
    def weights(self) -> np.ndarray:
        return np.array([sent.weight for sent in self.sent])
