"""Clipped updates: the norm of all that a client uploads is at most a given one.

Source: McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018 (flat
clipping of a user's update).
"""

import torch

from fedflow.settings import option
from fedflow.simulation.updates.step import Changed, Outgoing, UpdateStep, register


@register("clip", "Clipping")
class Clip(UpdateStep):
    """Every client's update u becomes u min(1, norm / ||u||), where ||u|| is over all vectors that it sends.

    A vector that the client received under the same name and in the same shape counts as the difference from
    the received one, and the model of a client that received ``models`` [k, n] as the difference from the
    model of its cluster (`Update.group`). All other vectors count as they are: differences and gradients that
    methods send as such (``d`` of FedNova), but also personal models (MTL, L2GD, FedAC) and the variable z of
    FedSplit. The vectors of a method that sends several (SCAFFOLD: ``dy`` and ``dc``) have one joint norm and
    one common factor. Running statistics of a network count like its parameters. Of pruned networks, the
    entries that cross count. Masks, whole numbers, scalars and weights are not clipped, nor is anything that
    a client keeps, such as its control variate.

    Diagnostics of every client: ``norm`` before clipping, and ``clipped``, 1 or 0. The update of a client
    that is not clipped does not change by a bit.
    """

    norm: float = option(doc="largest norm of an update", symbol="C", gt=0, source="McMahan et al. 2018")

    def change(self, sent: Outgoing) -> Changed:
        differences = sent.differences()
        squares = [difference.flatten(1).double().square().sum(1) for difference in differences.values()]
        norm = torch.stack(squares).sum(0).sqrt()  # [C]
        clipped = norm > self.norm
        factor = (self.norm / norm).where(clipped, 1.0)
        scaled = {name: (d * _column(factor, d)).to(d.dtype) for name, d in differences.items()}
        vectors = {
            name: moved.where(_column(clipped, moved), sent.update.vectors[name])
            for name, moved in sent.moved(scaled).items()
        }
        return Changed(vectors, diagnostics={"norm": norm, "clipped": clipped.double()})


def _column(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``values`` [C] in a shape that multiplies ``like`` [C, ...] row by row."""
    return values.view(-1, *[1] * (like.ndim - 1))
