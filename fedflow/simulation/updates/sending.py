"""The updates of one worker, on their way to the server: checked, changed, counted and summed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from fedflow.local.client import TRAIN_LOSS, Update
from fedflow.simulation.exact import ExactSum
from fedflow.simulation.job import ClientResult, Job, Shard, Sums, Trained
from fedflow.simulation.updates.path import KEPT


class Sending:
    """Takes updates of the clients of a shard; ``trained`` is the result for the server.

    Vectors are summed unless the server needs every single one; onboardings set ``gathers``. ``shard`` is the
    shard without the vectors that clients keep for steps.
    """

    def __init__(self, job: Job, shard: Shard, gathers: bool = False) -> None:
        self.path, self._device = job.path(shard.steps), job.device
        self.gathers = gathers or self.path.gathers
        self.trained = Trained([], [])
        self.shard, self._kept = _without_kept(shard)
        self._index = {client: i for i, client in enumerate(shard.clients)}

    def fail(self, client: int, reason: str) -> None:
        self.trained.failures.append((client, reason))

    def take(self, clients: Sequence[int], update: Update) -> None:
        """Send the accepted updates [C, ...] of some clients."""
        entries: list[dict[str, list[int]]] = []
        if self.path.steps:
            clients, update, entries = self._stepped(clients, update)
        weights, groups = update.weight.tolist(), update.group.tolist()
        scalars = {name: values.tolist() for name, values in update.scalars.items()}
        diagnostics = {name: values.tolist() for name, values in update.diagnostics.items()}
        losses = diagnostics.pop(TRAIN_LOSS, [0.0] * len(weights))
        if not self.gathers:
            _fold(self.trained.sums, update, weights, groups)
        for c, client in enumerate(clients):
            sent = {name: vector[c] for name, vector in update.vectors.items()}
            crossing = [{name: counts[c] for name, counts in step.items()} for step in entries]
            result = ClientResult(
                client,
                groups[c],
                weights[c],
                {name: values[c] for name, values in scalars.items()},
                {name: values[c] for name, values in diagnostics.items()},
                _row(update.keep, c),
                _row(update.vectors, c) if self.gathers else {},
                self.path.bytes(sent, len(scalars), crossing),
                losses[c],
            )
            self.trained.sent.append(result)

    def _stepped(
        self, clients: Sequence[int], update: Update
    ) -> tuple[Sequence[int], Update, list[dict[str, list[int]]]]:
        """The updates after the steps of the run, without updates that are refused then.

        Also the number of entries that cross of each client, by step and vector.
        """
        on_device: dict[int, Tensor] = {}
        received, kept = (
            [self._tensors(messages[self._index[k]], on_device) for k in clients]
            for messages in (self.shard.received, self._kept)
        )
        at = self.shard.round, self.shard.cycle
        update, entries = self.path.changed(clients, at, update, received, kept, self.shard.cohort)
        good: list[int] = []
        for c, client in enumerate(clients):
            if fault := self.path.fault(update.map(partial(_of_one, c, self._device)), received[c]):
                self.fail(client, fault)
            else:
                good.append(c)
        crossing = [{name: counts[good].tolist() for name, counts in step.items()} for step in entries]
        return [clients[c] for c in good], update.map(lambda t: t[good]), crossing

    def _tensors(self, message: Mapping[str, int], on_device: dict[int, Tensor]) -> dict[str, Tensor]:
        """The vectors of a message on the device, each copied once."""
        for at in message.values():
            if at not in on_device:
                on_device[at] = self.shard.vectors[at].to(self._device)
        return {name: on_device[at] for name, at in message.items()}


def _without_kept(shard: Shard) -> tuple[Shard, list[dict[str, int]]]:
    """The shard without the vectors that clients keep for steps, and these vectors."""
    for_steps = [{name: at for name, at in kept.items() if name.startswith(KEPT)} for kept in shard.kept]
    others = [{name: at for name, at in kept.items() if not name.startswith(KEPT)} for kept in shard.kept]
    return replace(shard, kept=others), for_steps


def _fold(sums: Sums, update: Update, weights: list[float], groups: list[int]) -> None:
    for group in sorted(set(groups)):
        members = [c for c, number in enumerate(groups) if number == group]
        for name, stacked in update.vectors.items():
            rows = stacked if len(members) == len(groups) else stacked[members]
            sums.setdefault((name, group), ExactSum()).add_rows(rows, [weights[c] for c in members])


def _of_one(c: int, device: str, stacked: Tensor) -> Tensor:
    return stacked[c].to(device)


def _row(stacked: dict[str, Tensor], c: int) -> dict[str, Tensor]:
    # Copies: a view would keep the whole cohort in memory, and the next replay of a graph would overwrite it.
    return {name: t[c].clone() for name, t in stacked.items()}
