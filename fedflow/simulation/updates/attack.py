"""Attacks on updates by a share of the clients, the same ones in all rounds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedflow.settings import option
from fedflow.simulation.updates.step import Changed, Outgoing, Sent, UpdateStep
from fedflow.simulation.updates.together import Differences, Meeting

if TYPE_CHECKING:
    from fedflow.methods.method import Round


class Attack(UpdateStep):
    """An attack on what clients send; attackers train like the others.

    The attackers are the clients whose place is below ``share`` (`Outgoing.places`): the same for all attacks
    of a run, and more of them for a larger share. ``attackers`` is their number in a round.
    """

    share: float = option(0.2, "share of the clients that attack", ge=0, le=1)

    def change(self, sent: Outgoing) -> Changed:
        order = torch.tensor(sent.places, dtype=torch.float64, device=sent.update.weight.device)
        attacks = order < self.share
        forged = self.forged(sent) if attacks.any() else {}
        vectors = {
            name: vector.where(attacks.view(-1, *[1] * (vector.ndim - 1)), sent.update.vectors[name])
            for name, vector in forged.items()
        }
        return Changed(vectors, diagnostics={"attacks": attacks.double()})

    def forged(self, sent: Outgoing) -> Mapping[str, Tensor]:
        """The vectors [C, ...] that clients send if they attack."""
        return {}

    def learn(
        self, now: "Round", state: Mapping[str, Tensor], sent: Sequence[Sent]
    ) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
        return state, {"attackers": sum(client.numbers["attacks"] for client in sent)}


class Collusion(Attack, Meeting):
    """An attack whose clients know the updates of a round, in every cluster the ones of its clients.

    All attackers of a cluster send the same update, computed in float64. Where one side has no client, no
    update changes. Steps on clients, such as `Clip`, come before: attackers do not clip what they forge.
    """

    def change_group(self, differences: Differences, members: Sequence[int]) -> None:
        attackers = [i for i in members if differences.got.places[i] < self.share]
        honest = [i for i in members if i not in attackers]
        if not attackers or not honest:
            return
        of_attackers, of_honest = ([differences.of(i) for i in side] for side in (attackers, honest))
        forged: dict[str, Tensor] = {}
        for name in differences.vectors:
            if len({d[name].shape for d in (*of_attackers, *of_honest)}) > 1:
                raise self.unfit(f"without methods whose vectors {name} differ in size")
            theirs, others = (torch.stack([d[name] for d in side]) for side in (of_attackers, of_honest))
            forged[name] = self.forge(theirs.double(), others.double())
        for i in attackers:
            differences.move(i, forged)

    def forge(self, attackers: Tensor, honest: Tensor) -> Tensor:
        """The update [...] that every attacker sends, from their own [f, ...] and the ``honest`` [h, ...]."""
        raise NotImplementedError
