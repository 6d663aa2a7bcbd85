"""Messages between server and clients: tensors that clients share are packed once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from fedflow.simulation.clients import ClientStore
from fedflow.simulation.job import Job, Shard
from fedflow.simulation.updates.path import UpdatePath


class Messages(NamedTuple):
    """What clients receive and keep: by client a mapping from names to indices into ``vectors``."""

    vectors: list[Tensor]
    received: list[dict[str, int]]
    kept: list[dict[str, int]]


def _memory(vector: Tensor) -> tuple[Any, ...]:
    """What identifies the entries of a vector in memory: equal for two views of the same row."""
    return vector.data_ptr(), vector.shape, vector.stride(), vector.dtype


def received_bytes(job: Job, shard: Shard) -> list[int]:
    """Traffic down to every client of a shard, which takes no steps of `run.updates`."""
    path = UpdatePath(job.method)
    return [path.bytes({name: shard.vectors[at] for name, at in names.items()}) for names in shard.received]


def pack(
    clients: Iterable[int],
    send: Callable[[int], Mapping[str, Tensor]],
    store: ClientStore,
    names: Sequence[str],
    replaced: Callable[[int], Mapping[str, str]] = lambda client: {},
    written: Sequence[str] = (),
) -> Messages:
    """The messages that ``send`` returns, and the kept vectors ``names`` of every client.

    ``replaced`` maps kept vectors of a client to received ones that take their place. Those that are
    ``written`` are left out for clients that never had any.
    """
    packed, places = Messages([], [], []), dict[tuple[Any, ...], int]()

    def place(vector: Tensor) -> int:
        same = _memory(vector)
        if same not in places:
            places[same] = len(packed.vectors)
            packed.vectors.append(vector)
        return places[same]

    for k in clients:
        sent, instead = send(k), replaced(k)
        wanted = [*names, *(name for name in written if store.has(k, name))]
        # Initial values that are replaced are not made.
        own = store.get(k, [name for name in wanted if name not in instead])
        own |= {name: sent[source] for name, source in instead.items()}
        packed.received.append({name: place(v) for name, v in sent.items()})
        packed.kept.append({name: place(v) for name, v in own.items()})
    return packed
