"""Messages from the server to clients: tensors that clients share are packed once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from fedflow.simulation.clients import ClientStore
from fedflow.simulation.job import Shard
from fedflow.simulation.updates.path import UpdatePath


class Messages(NamedTuple):
    """The vectors that clients receive and keep: for each client, names with indices into ``vectors``."""

    vectors: list[Tensor]
    received: list[dict[str, int]]
    kept: list[dict[str, int]]


def received_bytes(path: UpdatePath, shard: Shard) -> list[int]:
    """Traffic down to every client of a shard, in bytes."""
    named = ({name: shard.vectors[at] for name, at in names.items()} for names in shard.received)
    return [path.received_bytes(vectors) for vectors in named]


def pack(
    clients: Iterable[int],
    send: Callable[[int], Mapping[str, Tensor]],
    store: ClientStore,
    names: Sequence[str],
    replaced: Callable[[int], Mapping[str, str]] = lambda client: {},
    written: Sequence[str] = (),
) -> Messages:
    """The messages that ``send`` returns, and the kept vectors ``names`` of every client.

    ``replaced`` maps kept vectors of a client to received vectors that replace them. Vectors ``written`` are
    only for clients that have them.
    """
    packed, indices = Messages([], [], []), dict[tuple[Any, ...], int]()

    def index(vector: Tensor) -> int:
        memory = vector.data_ptr(), vector.shape, vector.stride(), vector.dtype  # equal for views of one row
        if memory not in indices:
            indices[memory] = len(packed.vectors)
            packed.vectors.append(vector)
        return indices[memory]

    for k in clients:
        sent, instead = send(k), replaced(k)
        wanted = [*names, *(name for name in written if store.has(k, name))]
        kept = store.get(k, [name for name in wanted if name not in instead])
        kept |= {name: sent[source] for name, source in instead.items()}
        packed.received.append({name: index(v) for name, v in sent.items()})
        packed.kept.append({name: index(v) for name, v in kept.items()})
    return packed
