"""Means of the models that clients trained last: they are scored (`run.reports`, `run.adapt_from`), not sent.

The mean over all N clients is updated by differences: a client's new model is added to a sum, and its
previous one subtracted, without rounding (`ExactSum`). So it is the mean of the stored models, whatever the
number of workers, and after a resume.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import TRAINED
from fedflow.simulation.clients import ClientStore
from fedflow.simulation.exact import ExactSum

MEANS = ("active", "all")
REPORTS = ("server", *MEANS)  # of `run.reports`
SCORES = ("accuracy", "loss")  # of each


class TrainedMeans:
    """Means over the cohort of a round ("active") and over all clients ("all"), if ``names`` has them.

    ``weights`` [N] need not sum to 1. A client that never trained counts with the initial model. Clients of
    each of ``levels`` (name -> clients), whose networks differ, have means of their models only.
    """

    def __init__(
        self,
        names: Collection[str],
        weights: np.ndarray,
        store: ClientStore,
        levels: Mapping[str, Sequence[int]],
    ) -> None:
        self.names, self.weights, self.store, self.levels = names, weights, store, levels
        self._level = {client: level for level, clients in levels.items() for client in clients}
        self._active, self._all = ({level: ExactSum() for level in levels} for _ in range(2))

    def start_round(self) -> None:
        """Forget the cohort of the previous round."""
        self._active = {level: ExactSum() for level in self.levels}

    def take(self, client: int, keep: dict[str, Tensor]) -> None:
        """Add the model that a client trained in this round, before the store replaces its previous one.

        It is removed from what the client keeps, ``keep``, unless the store needs it.
        """
        if not self.names:
            return
        if TRAINED not in keep:
            accepted = "[] or [server], and served: the clients of this method train no model"
            raise BadInput("run.reports, run.adapt_from", sorted(self.names), accepted)
        stored, weight = TRAINED in self.store.first, float(self.weights[client])
        trained, level = keep[TRAINED] if stored else keep.pop(TRAINED), self._level[client]
        if "active" in self.names:
            self._active[level].add(trained, weight)
        if "all" in self.names:
            if self.store.written[TRAINED][client]:
                self._all[level].add(self.store.get(client, [TRAINED])[TRAINED], -weight)
            self._all[level].add(trained, weight)

    def models(self, dtype: torch.dtype, level: str = "") -> dict[str, Tensor]:
        """The means [D] of one level after at least one round; none over an empty cohort."""
        found = {}
        if "active" in self.names and self._active[level].high is not None:
            found["active"] = self._active[level].mean(dtype)
        if "all" in self.names and self.levels[level]:
            total = ExactSum()
            if self._all[level].high is not None:
                total.merge(self._all[level])
            never = [k for k in self.levels[level] if not self.store.written[TRAINED][k]]
            if never:
                initial = self.store.get(never[0], [TRAINED])[TRAINED]
                total.add(initial, float(self.weights[never].sum()))
            found["all"] = total.mean(dtype)
        return found

    def packed(self) -> dict[str, Tensor]:
        """The sums, for a checkpoint at the end of a round."""
        packed: dict[str, Tensor] = {}
        for kind, sums in self._sums().items():
            for level, total in sums.items():
                if total.high is not None and total.low is not None:
                    weight = torch.tensor(total.weight, dtype=torch.float64)
                    parts = {"high": total.high, "low": total.low, "weight": weight}
                    packed |= {f"{kind}/{level}/{part}": value for part, value in parts.items()}
        return packed

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what was `packed`."""
        for kind, sums in self._sums().items():
            for level in sums:
                name = f"{kind}/{level}"
                if f"{name}/high" in tensors:
                    high, low, weight = (tensors[f"{name}/{part}"] for part in ("high", "low", "weight"))
                    sums[level] = ExactSum(high, low, float(weight))

    def _sums(self) -> dict[str, dict[str, ExactSum]]:
        return {"active": self._active, "all": self._all}
