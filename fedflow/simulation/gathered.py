"""The updates that the server receives in one round, in client order, and their means."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import FedflowError
from fedflow.methods.method import Round
from fedflow.simulation.exact import ExactSum
from fedflow.simulation.job import ClientResult, Trained, merged_sums
from fedflow.simulation.updates.path import UpdatePath


class Gathered:
    """The updates of one round in client order (`fedflow.methods.method.Cohort`).

    ``received`` are the messages to the clients of the round. ``averaged``: a mean was asked for.
    """

    def __init__(
        self,
        results: list[Trained],
        round: Round,
        path: UpdatePath,
        received: Mapping[int, Mapping[str, Tensor]] | None = None,
    ) -> None:
        self._dtype, self._at = round.model.dtype, (round.t, round.cycle)
        self._path, self.averaged = path, False
        self.sent: list[ClientResult] = sorted((s for r in results for s in r.sent), key=lambda s: s.client)
        self.failures = sorted(failure for r in results for failure in r.failures)
        self.failed = [client for client, _ in self.failures]
        self.newcomers = bool(self.sent) and self.sent[0].client >= round.clients
        self._sums, self._cohort = merged_sums(results), sorted(received or ())
        path.meet(self.sent, received or {}, self._at)

    @property
    def ids(self) -> list[int]:
        self._path.reads("clients")
        return [s.client for s in self.sent]

    @property
    def groups(self) -> list[int]:
        self._path.reads("groups")
        return [s.group for s in self.sent]

    def mean(self, name: str, group: int | None = None, weights: np.ndarray | None = None) -> Tensor:
        self.averaged = True
        if weights is not None:
            self._path.reads("a mean of some")
        gathered = {name for sent in self.sent for name in sent.vectors}
        summed = {name for name, _ in self._sums}
        if weights is not None and name in summed - gathered:
            raise FedflowError(f"cohort.mean({name!r}, weights=...) needs gathers = True")
        _need("mean", name, summed | gathered)
        counted = [
            (sent, float(weight))
            for sent, weight in zip(self.sent, self._weights if weights is None else weights)
            if weight and group in (None, sent.group) and (name in sent.vectors or name not in gathered)
        ]
        if not counted:
            of_group = "" if group is None else f" of group {group}"
            raise FedflowError(f"cohort.mean({name!r}): no update{of_group} has a weight above 0")
        rows = [(sent.vectors[name], weight) for sent, weight in counted if name in sent.vectors]

        def exact() -> Tensor:
            total = ExactSum()
            for key, number in sorted(self._sums):
                if key == name and group in (None, number) and weights is None:
                    total.merge(self._sums[key, number])
            for vector, weight in rows:
                total.add(vector, weight)
            return total.mean(self._dtype)

        mean = self._path.mean(
            name,
            group,
            [sent.client for sent, _ in counted],
            np.array([weight for _, weight in counted]),
            self._at,
            exact,
            [vector for vector, _ in rows],
            self._cohort,
        )
        return mean.to(self._dtype)

    def vectors(self, name: str) -> list[Tensor]:
        gathered = {name for sent in self.sent for name in sent.vectors}
        if name not in gathered and name in {name for name, _ in self._sums}:
            raise FedflowError(f"cohort.vectors({name!r}) needs gathers = True")
        _need("vectors", name, gathered)
        self._path.reads("vectors")
        return [sent.vectors[name] for sent in self.sent]

    def stack(self, name: str) -> Tensor:
        return torch.stack(self.vectors(name))

    def scalars(self, name: str) -> np.ndarray:
        _need("scalars", name, {name for sent in self.sent for name in sent.scalars})
        self._path.reads("scalars")
        return np.array([sent.scalars[name] for sent in self.sent], np.float64)

    @property
    def weights(self) -> np.ndarray:
        self._path.reads("weights")
        return self._weights

    @property
    def _weights(self) -> np.ndarray:
        return np.array([sent.weight for sent in self.sent])


def _need(hook: str, name: str, sent: set[str]) -> None:
    """Raise `FedflowError` for a name that no client sent."""
    if name not in sent:
        raise FedflowError(f"cohort.{hook}({name!r}): clients sent {', '.join(sorted(sent)) or 'none'}")
