"""Means of the models that clients trained last: they are scored (`run.reports`, `run.adapt_from`), not sent.

The mean over all N clients is updated by differences: a client's new model is added to a sum, and its
previous one subtracted, without rounding (`ExactSum`). So it is the mean of the stored models, whatever the
number of workers, and after a resume.
"""

from collections.abc import Collection, Mapping

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

    ``weights`` [N] need not sum to 1. A client that never trained counts with the initial model.
    """

    def __init__(self, names: Collection[str], weights: np.ndarray, store: ClientStore) -> None:
        self.names, self.weights, self.store = names, weights, store
        self._active, self._all = ExactSum(), ExactSum()

    def start_round(self) -> None:
        """Forget the cohort of the previous round."""
        self._active = ExactSum()

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
        trained = keep[TRAINED] if stored else keep.pop(TRAINED)
        if "active" in self.names:
            self._active.add(trained, weight)
        if "all" in self.names:
            if self.store.written[TRAINED][client]:
                self._all.add(self.store.get(client, [TRAINED])[TRAINED], -weight)
            self._all.add(trained, weight)

    def models(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The means [D] after at least one round."""
        found = {}
        if "active" in self.names:
            found["active"] = self._active.mean(dtype)
        if "all" in self.names:
            total, never = ExactSum(), ~self.store.written[TRAINED]
            total.merge(self._all)
            if never.any():
                total.add(self.store.first[TRAINED], float(self.weights[never].sum()))
            found["all"] = total.mean(dtype)
        return found

    def packed(self) -> dict[str, Tensor]:
        """The sums, for a checkpoint at the end of a round."""
        packed: dict[str, Tensor] = {}
        for name, total in (("active", self._active), ("all", self._all)):
            if total.high is not None and total.low is not None:
                weight = torch.tensor(total.weight, dtype=torch.float64)
                packed |= {f"{name}/high": total.high, f"{name}/low": total.low, f"{name}/weight": weight}
        return packed

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what was `packed`."""
        for name, total in (("active", self._active), ("all", self._all)):
            if f"{name}/high" in tensors:
                total.high, total.low = tensors[f"{name}/high"], tensors[f"{name}/low"]
                total.weight = float(tensors[f"{name}/weight"])
