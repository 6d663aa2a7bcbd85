"""Gaussian attack: attackers send noise in place of their update.

Source: Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NIPS 2017.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedflow.settings import option
from fedflow.simulation.updates.attack import Attack
from fedflow.simulation.updates.step import Outgoing, register


@register("gaussian_attack", "Gaussian attack")
class GaussianAttack(Attack):
    """Every entry of an attacker's update is drawn from N(0, ``std``^2), in every round."""

    std: float = option(1.0, "standard deviation of an entry", symbol="sigma", gt=0, source="Blanchard: 200")

    def forged(self, sent: Outgoing) -> Mapping[str, Tensor]:
        noise = {name: torch.zeros_like(d) for name, d in sent.differences().items()}
        for c, client in enumerate(sent.clients):
            if sent.places[c] < self.share:
                for name, rows in noise.items():
                    drawn = sent.rng(f"noise {name}", client).normal(0, self.std, tuple(rows.shape[1:]))
                    rows[c] = torch.from_numpy(drawn).to(rows)
        return sent.moved(noise)
