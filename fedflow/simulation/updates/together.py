"""Steps on the server that change the updates of all clients of a round together."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from fedflow.simulation.updates.rules import WholeUpdates, warn_of_memory
from fedflow.simulation.updates.step import Arrived, counterpart, without_numbers


class Differences:
    """The updates of a round as differences from what their clients received, as in `Outgoing.differences`.

    ``vectors`` are the changed vectors of real numbers, by name and in client order.
    """

    def __init__(self, got: Arrived) -> None:
        self.got = got
        real = ((name, rows) for name, rows in got.vectors.items() if rows[0].is_floating_point())
        self.vectors = {name: [*rows] for name, rows in real}

    @cached_property
    def groups(self) -> list[list[int]]:
        """The indices of the clients of every group, such as a cluster."""
        groups = self.got.groups
        return [[i for i, number in enumerate(groups) if number == group] for group in sorted({*groups})]

    def of(self, i: int) -> dict[str, Tensor]:
        """The differences of client ``i``, by name."""
        starts = {name: self._reference(name, i) for name in self.vectors}
        return {
            name: self.vectors[name][i] if start is None else self.vectors[name][i] - start
            for name, start in starts.items()
        }

    def move(self, i: int, differences: Mapping[str, Tensor]) -> None:
        """Give client ``i`` the vectors with these differences."""
        for name, difference in differences.items():
            start, like = self._reference(name, i), self.vectors[name][i]
            self.vectors[name][i] = (difference if start is None else start + difference).to(like.dtype)

    def _reference(self, name: str, i: int) -> Tensor | None:
        row = counterpart(self.got.received[i], name, self.got.groups[i])
        like = self.got.vectors[name][i]
        return row.to(like.device) if row is not None and row.shape == like.shape else None


class Meeting(WholeUpdates):
    """A step that changes the differences of a round together."""

    def meet(self, got: Arrived) -> Mapping[str, Sequence[Tensor]]:
        differences = Differences(got)
        if not differences.vectors:
            raise without_numbers(self.name, "without secure")  # the server gets masked updates
        warn_of_memory(self, (row for rows in differences.vectors.values() for row in rows))
        for members in differences.groups:
            self.change_group(differences, members)
        return differences.vectors

    def change_group(self, differences: Differences, members: Sequence[int]) -> None:
        """Change the updates of the clients ``members`` of one group."""
        raise NotImplementedError


def norm(differences: Mapping[str, Tensor]) -> float:
    """The joint norm of the differences of one client."""
    squares = [difference.double().square().sum() for difference in differences.values()]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0
