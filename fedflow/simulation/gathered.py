"""What the server receives in one round: updates in client order, and their exact means."""

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import FedflowError
from fedflow.methods.method import Round
from fedflow.simulation.exact import ExactSum
from fedflow.simulation.job import ClientResult, Trained, merged_sums


class Gathered:
    """The updates of one round in client order (`fedflow.methods.method.Cohort`)."""

    def __init__(self, results: list[Trained], round: Round) -> None:
        self._dtype = round.model.dtype
        self.sent: list[ClientResult] = sorted((s for r in results for s in r.sent), key=lambda s: s.client)
        self.failures = sorted(failure for r in results for failure in r.failures)
        self.failed = [client for client, _ in self.failures]
        self.ids = [s.client for s in self.sent]
        self.newcomers = bool(self.ids) and self.ids[0] >= round.clients
        self.groups = [s.group for s in self.sent]
        self._sums = merged_sums(results)

    def mean(self, name: str, group: int | None = None, weights: np.ndarray | None = None) -> Tensor:
        total, gathered = ExactSum(), {each for sent in self.sent for each in sent.vectors}
        summed = {key for key, _ in self._sums}
        if weights is not None and name in summed - gathered:
            raise FedflowError(f"cohort.mean({name!r}, weights=...) needs gathers = True")
        _need("mean", name, summed | gathered)
        if weights is None:
            for (key, number), part in sorted(self._sums.items(), key=lambda item: item[0]):
                if key == name and group in (None, number):
                    total.merge(part)
        for sent, weight in zip(self.sent, self.weights if weights is None else weights):
            if weight and name in sent.vectors and group in (None, sent.group):
                total.add(sent.vectors[name], float(weight))
        return total.mean(self._dtype)

    def vectors(self, name: str) -> list[Tensor]:
        if name in {key for key, _ in self._sums} and not any(name in sent.vectors for sent in self.sent):
            raise FedflowError(f"cohort.vectors({name!r}) needs gathers = True")
        _need("vectors", name, {each for sent in self.sent for each in sent.vectors})
        return [sent.vectors[name] for sent in self.sent]

    def stack(self, name: str) -> Tensor:
        return torch.stack(self.vectors(name))

    def scalars(self, name: str) -> np.ndarray:
        _need("scalars", name, {each for sent in self.sent for each in sent.scalars})
        return np.array([sent.scalars[name] for sent in self.sent])

    @property
    def weights(self) -> np.ndarray:
        return np.array([sent.weight for sent in self.sent])


def _need(hook: str, name: str, sent: set[str]) -> None:
    """Raise `FedflowError` for a name that no client sent."""
    if name not in sent:
        raise FedflowError(f"cohort.{hook}({name!r}): clients sent {', '.join(sorted(sent)) or 'none'}")
