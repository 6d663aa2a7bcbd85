"""The updates of one worker on their way to the server: checked, changed, counted and summed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from fedflow.local.client import TRAIN_LOSS, Update
from fedflow.simulation.job import ClientResult, Job, Shard, Trained
from fedflow.simulation.updates.path import OWN
from fedflow.simulation.updates.sums import fold


class Sending:
    """Takes updates of the clients of a shard; ``trained`` is what the server gets.

    Vectors are summed unless the server needs every single one of them; ``gathers`` says so for answers that
    are no updates. ``shard`` is without the vectors that clients keep for steps.
    """

    def __init__(self, job: Job, shard: Shard, gathers: bool = False) -> None:
        self.path, self._device = job.path(shard), job.device
        self.gathers = gathers or self.path.gathers
        self.trained = Trained([], [])
        self.shard, self._kept = _without_kept(shard)
        self._places = {client: i for i, client in enumerate(shard.clients)}

    def fail(self, client: int, reason: str) -> None:
        """Note a client without an update."""
        self.trained.failures.append((client, reason))

    def take(self, clients: Sequence[int], update: Update) -> None:
        """Send the updates [C, ...] of some clients, which were accepted as they were trained."""
        entries: list[dict[str, list[int]]] = []
        if self.path.steps:
            clients, update, entries = self._stepped(clients, update)
        weights, groups = update.weight.tolist(), update.group.tolist()
        scalars = {name: values.tolist() for name, values in update.scalars.items()}
        diagnostics = {name: values.tolist() for name, values in update.diagnostics.items()}
        losses = diagnostics.pop(TRAIN_LOSS, [0.0] * len(weights))
        if not self.gathers:
            fold(self.trained.sums, update, weights, groups)
        for c, client in enumerate(clients):
            own = {name: values[c] for name, values in scalars.items()}
            reported = {name: values[c] for name, values in diagnostics.items()}
            sent = {name: vector[c] for name, vector in update.vectors.items()}
            crossing = [{name: counts[c] for name, counts in part.items()} for part in entries]
            traffic = self.path.bytes(sent, len(own), crossing)
            vectors = _row(update.vectors, c) if self.gathers else {}
            keep = _row(update.keep, c)
            self.trained.sent.append(
                ClientResult(client, groups[c], weights[c], own, reported, keep, vectors, traffic, losses[c])
            )

    def _stepped(
        self, clients: Sequence[int], update: Update
    ) -> tuple[Sequence[int], Update, list[dict[str, list[int]]]]:
        """The updates after the steps of the run, without those that a part refuses then.

        Also the entries that cross, by part and vector: a number for each client.
        """
        held: dict[int, Tensor] = {}  # the vectors on the device, each once
        received, kept = (
            [self._tensors(messages[self._places[k]], held) for k in clients]
            for messages in (self.shard.received, self._kept)
        )
        at = self.shard.round, self.shard.cycle
        update, entries = self.path.changed(clients, at, update, received, kept)
        good: list[int] = []
        for c, client in enumerate(clients):
            own = update.map(partial(_of_one, c, self._device))
            if fault := self.path.fault(own, received[c]):
                self.fail(client, fault)
            else:
                good.append(c)
        if len(good) < len(clients):
            clients, update = [clients[c] for c in good], update.map(lambda t: t[good])
        crossing = [{name: counts[good].tolist() for name, counts in part.items()} for part in entries]
        return clients, update, crossing

    def _tensors(self, message: Mapping[str, int], held: dict[int, Tensor]) -> dict[str, Tensor]:
        """The vectors of a message on the device; those that are ``held`` there are not copied again."""
        for at in message.values():
            if at not in held:
                held[at] = self.shard.vectors[at].to(self._device)
        return {name: held[at] for name, at in message.items()}


def _without_kept(shard: Shard) -> tuple[Shard, list[dict[str, int]]]:
    """The shard without what clients keep for steps, and that."""
    own = [{name: at for name, at in kept.items() if name.startswith(OWN)} for kept in shard.kept]
    others = [{n: at for n, at in kept.items() if n not in mine} for kept, mine in zip(shard.kept, own)]
    return (replace(shard, kept=others) if any(own) else shard), own


def _of_one(c: int, device: str, stacked: Tensor) -> Tensor:
    """Client ``c``'s row of a tensor, on ``device``."""
    return stacked[c].to(device)


def _row(stacked: dict[str, Tensor], c: int) -> dict[str, Tensor]:
    """Client ``c``'s tensors of a cohort."""
    # Copies: a view would keep the whole cohort in memory, and the next replay of a graph would overwrite it.
    return {name: t[c].clone() for name, t in stacked.items()}
