"""The state that a run needs to resume (server, clients, history), and its form in a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedflow.local.client import TRAINED
from fedflow.methods.method import ServerState
from fedflow.simulation.clients import ClientStore
from fedflow.simulation.history import History
from fedflow.simulation.remembered import RememberedScores
from fedflow.simulation.timing import Work
from fedflow.simulation.updates.path import KEPT

PLACED = ("server/", "busy/", "steps/")  # tensors of a checkpoint that may be on the model's device


@dataclass
class State:
    """The values that change from round to round; N clients take part."""

    server: ServerState
    store: ClientStore
    participations: np.ndarray  # [N]
    parts: Mapping[str, Any]  # the extensions of the run, by name, with `packed` and `restore`
    scores: RememberedScores
    onboarded: dict[str, int] | None = None  # bytes of the onboarding, down and up; None before it
    busy: list[Work] = field(default_factory=list)  # clients that train while the server takes its steps
    history: History = field(default_factory=History)
    steps: dict[str, Tensor] = field(default_factory=dict)  # the server's, for the steps of `run.updates`

    @property
    def own_vectors(self) -> list[str]:
        return [name for name in self.store.first if name != TRAINED and not name.startswith(KEPT)]

    def packed(self, device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain facts to save, without the content of the files of clients and rounds.

        Writes new rounds to the history file. ``device`` is the model's.
        """
        # Copies, because a server may have one tensor under two names.
        tensors = {f"server/{name}": t.clone() for name, t in self.server.tensors().items()}
        tensors |= {f"busy/{w.client}/{n}": t.clone() for w in self.busy for n, t in w.received.items()}
        for name, part in self.parts.items():
            tensors |= {f"part/{name}/{key}": t for key, t in part.packed().items()}
        tensors |= {f"scores/{name}": t for name, t in self.scores.packed().items()}
        tensors |= {f"steps/{name}": t.clone() for name, t in self.steps.items()}
        tensors |= self.store.changes()
        tensors["participations"] = torch.from_numpy(self.participations)
        facts = {
            # On a GPU, some tensors of a server are on the host.
            "host": [n for n, t in tensors.items() if n.startswith(PLACED) and t.device.type != device.type],
            "history": self.history.save(),
            "onboarded": self.onboarded,
            "busy": [{k: v for k, v in vars(work).items() if k != "received"} for work in self.busy],
        }
        return tensors, facts

    def unpack(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], device: torch.device) -> None:
        """Restore what was `packed`: on ``device``, unless it was on the host of a GPU."""

        def under(start: str) -> dict[str, Tensor]:
            return {n.removeprefix(start): t for n, t in placed.items() if n.startswith(start)}

        host = set(facts["host"])
        placed = {
            name: t.to(device) if name.startswith(PLACED) and name not in host else t
            for name, t in tensors.items()
        }
        self.server = self.server.restored(under("server/"))
        self.store.restore(tensors)
        self.scores.restore(under("scores/"))
        for name, part in self.parts.items():
            part.restore(under(f"part/{name}/"))
        self.participations = tensors["participations"].numpy()
        self.steps = under("steps/")
        self.history.restore(facts["history"])
        self.onboarded = facts["onboarded"]
        for work in facts["busy"]:
            self.busy.append(Work(**work, received=under(f"busy/{work['client']}/")))
