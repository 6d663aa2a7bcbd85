"""All that a run needs to go on: the server, clients, what was told; and its form in a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedflow.methods.base import Server
from fedflow.simulation.clients import ClientStore
from fedflow.simulation.events import Work
from fedflow.simulation.history import History


@dataclass
class State:
    """What changes from round to round; N clients take part."""

    server: Server
    store: ClientStore
    participations: np.ndarray  # [N]
    assignment: np.ndarray  # last known cluster of every client [N], -1 before the first
    introduced: dict[str, int] | None = None  # bytes that the introductions took, down and up
    busy: list[Work] = field(default_factory=list)  # what clients do while the server takes its steps
    history: History = field(default_factory=History)

    def packed(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain facts, to be saved: only what is not in the files of clients and rounds yet.

        New rounds are in the file of the history when this returns.
        """
        # Copies, because a server may know one tensor by two names.
        tensors = {f"server/{name}": t.clone() for name, t in self.server.items()}
        tensors |= {f"busy/{w.client}/{n}": t.clone() for w in self.busy for n, t in w.received.items()}
        tensors |= self.store.changes()
        tensors["participations"] = torch.from_numpy(self.participations)
        tensors["assignment"] = torch.from_numpy(self.assignment)
        facts = {
            "history": self.history.save(),
            "introduced": self.introduced,
            "busy": [{k: v for k, v in vars(work).items() if k != "received"} for work in self.busy],
        }
        return tensors, facts

    def unpack(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], device: torch.device) -> None:
        """Take up what was `packed`."""

        def under(start: str) -> dict[str, Tensor]:
            return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}

        self.server = {name: t.to(device) for name, t in under("server/").items()}
        self.store.restore(tensors)
        self.participations = tensors["participations"].numpy()
        self.assignment = tensors["assignment"].numpy()
        self.history.restore(facts["history"])
        self.introduced = facts["introduced"]
        for work in facts["busy"]:
            received = {name: t.to(device) for name, t in under(f"busy/{work['client']}/").items()}
            self.busy.append(Work(**work, received=received))
