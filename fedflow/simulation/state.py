"""The state that a run needs to resume (server, clients, history), and its form in a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedflow.local.client import TRAINED
from fedflow.methods.method import ServerState
from fedflow.methods.protocols import Images
from fedflow.simulation.clients import ClientStore
from fedflow.simulation.events import Work
from fedflow.simulation.history import History
from fedflow.simulation.reporting import TrainedMeans
from fedflow.simulation.updates.path import OWN

PLACED = ("server/", "means/", "busy/")  # tensors of a checkpoint that may be on the model's device


@dataclass
class State:
    """The values that change from round to round; N clients take part."""

    server: ServerState
    store: ClientStore
    means: TrainedMeans
    participations: np.ndarray  # [N]
    assignment: np.ndarray  # last known cluster of every client [N], -1 before the first
    pool: np.ndarray  # sorted clients of the present pool of the client curriculum; none without
    onboarded: dict[str, int] | None = None  # bytes of the onboarding, down and up; None before it
    busy: list[Work] = field(default_factory=list)  # clients that train while the server takes its steps
    generated: dict[int, Images] = field(default_factory=dict)  # by round: pixels 0..255, of evaluations
    history: History = field(default_factory=History)
    steps: dict[str, Tensor] = field(default_factory=dict)  # the server's, for the steps of `run.updates`

    @property
    def own_vectors(self) -> list[str]:
        """The names of the vectors that clients keep for the method."""
        return [name for name in self.store.first if name != TRAINED and not name.startswith(OWN)]

    def packed(self, device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain facts to save, without what the files of clients and rounds already hold.

        Writes new rounds to the file of the history. ``device`` is the model's.
        """
        # Copies, because a server may have one tensor under two names.
        tensors = {f"server/{name}": t.clone() for name, t in self.server.tensors().items()}
        tensors |= {f"busy/{w.client}/{n}": t.clone() for w in self.busy for n, t in w.received.items()}
        tensors |= {f"means/{name}": t for name, t in self.means.packed().items()}
        tensors |= {f"images/{t}": images.x for t, images in self.generated.items()}
        tensors |= {f"labels/{t}": images.y.clone() for t, images in self.generated.items()}
        tensors |= {f"steps/{name}": t.clone() for name, t in self.steps.items()}
        tensors |= self.store.changes()
        tensors["participations"] = torch.from_numpy(self.participations)
        tensors["assignment"] = torch.from_numpy(self.assignment)
        tensors["pool"] = torch.from_numpy(self.pool)
        facts = {
            # On a GPU, some tensors of a server are on the host.
            "host": [n for n, t in tensors.items() if n.startswith(PLACED) and t.device.type != device.type],
            "history": self.history.save(),
            "onboarded": self.onboarded,
            "busy": [{k: v for k, v in vars(work).items() if k != "received"} for work in self.busy],
        }
        return tensors, facts

    def unpack(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], device: torch.device) -> None:
        """Restore what was `packed`: on ``device``, if it was not on the host beside a GPU."""

        def under(start: str) -> dict[str, Tensor]:
            return {n.removeprefix(start): t for n, t in placed.items() if n.startswith(start)}

        host = set(facts["host"])
        placed = {
            name: t.to(device) if name.startswith(PLACED) and name not in host else t
            for name, t in tensors.items()
        }
        self.server = self.server.restored(under("server/"))
        self.store.restore(tensors)
        self.means.restore(under("means/"))
        self.participations = tensors["participations"].numpy()
        self.assignment = tensors["assignment"].numpy()
        self.pool = tensors["pool"].numpy()
        labels = under("labels/")
        self.generated = {int(t): Images(x, labels[t]) for t, x in under("images/").items()}
        self.steps = under("steps/")
        self.history.restore(facts["history"])
        self.onboarded = facts["onboarded"]
        for work in facts["busy"]:
            self.busy.append(Work(**work, received=under(f"busy/{work['client']}/")))
