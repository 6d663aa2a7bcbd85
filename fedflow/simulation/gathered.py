"""What the server receives in one round: updates in client order, and their means."""

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import FedflowError
from fedflow.methods.method import Round
from fedflow.simulation.job import ClientResult, Trained, merged_sums
from fedflow.simulation.updates.path import UpdatePath
from fedflow.simulation.updates.sums import exact_mean


class Gathered:
    """The updates of one round in client order (`fedflow.methods.method.Cohort`).

    Means are as the ``path`` of the updates says. ``averaged``: one was asked for.
    """

    def __init__(self, results: list[Trained], round: Round, path: UpdatePath) -> None:
        self._dtype, self._at = round.model.dtype, (round.t, round.cycle)
        self._path, self.averaged = path, False
        self.sent: list[ClientResult] = sorted((s for r in results for s in r.sent), key=lambda s: s.client)
        self.failures = sorted(failure for r in results for failure in r.failures)
        self.failed = [client for client, _ in self.failures]
        self.ids = [s.client for s in self.sent]
        self.newcomers = bool(self.ids) and self.ids[0] >= round.clients
        self.groups = [s.group for s in self.sent]
        self._sums = merged_sums(results)

    def mean(self, name: str, group: int | None = None, weights: np.ndarray | None = None) -> Tensor:
        self.averaged = True
        gathered = {each for sent in self.sent for each in sent.vectors}
        summed = {key for key, _ in self._sums}
        if weights is not None and name in summed - gathered:
            raise FedflowError(f"cohort.mean({name!r}, weights=...) needs gathers = True")
        _need("mean", name, summed | gathered)
        own = self.weights if weights is None else weights
        parts = {
            (key, number): part
            for (key, number), part in self._sums.items()
            if key == name and group in (None, number) and weights is None
        }
        counted = [
            (sent, float(weight))
            for sent, weight in zip(self.sent, own)
            if weight and group in (None, sent.group) and (name in sent.vectors or name not in gathered)
        ]
        rows = [(sent.vectors[name], weight) for sent, weight in counted if name in sent.vectors]
        return self._path.mean(
            (name, group),
            [sent.client for sent, _ in counted],
            np.array([weight for _, weight in counted]),
            self._at,
            exact=lambda: exact_mean(parts, rows, self._dtype),
            rows=lambda: [vector for vector, _ in rows],
        )

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
