"""Persistent processes of torch.distributed as workers, whose sums meet in an exact all-reduce.

Rank 0 runs the rounds with the executor `Ranks`; the other ranks call its `serve`. Vectors that several ranks
need are broadcast, and every rank merges an equal share of the columns of each sum. The caller starts the
processes: "gloo" for CPUs, "cpu:gloo,cuda:nccl" for one GPU per rank (docs/decisions/0017-ranks.md).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from fedflow.simulation.exact import ExactSum
from fedflow.simulation.executors import Share, Work
from fedflow.simulation.job import Shard, Trained
from fedflow.simulation.messages import memory

_Key = tuple[str, int]
_Sizes = dict[_Key, tuple[int, float]]  # entries and weight of each sum of a rank


@dataclass
class _Order:
    """What one rank does in a turn."""

    work: Callable[[Any, Any], Any]
    job: Work | None  # None: that of the last turn
    shard: Share | None  # None: only merge sums
    shared: list[tuple[torch.Size, torch.dtype]]  # of the vectors that are broadcast
    places: dict[int, int]  # from the vectors of the shard to those


class Ranks:
    """Runs one shard per rank.

    All ranks of the process group take part in every turn. If shards fail, `map` raises the first of their
    errors after the turn. If a rank dies, the run ends; it resumes from its checkpoint with new ranks.
    """

    def __init__(self) -> None:
        self.workers = dist.get_world_size()
        self._job: Work | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        """Let the other ranks return from `serve`."""
        self._turn([None] * self.workers)

    def serve(self) -> None:
        """Do what rank 0 orders, until it leaves its context."""
        while self._turn():
            pass

    def map(
        self, work: Callable[[Any, Any], Any], job: Work, shards: Sequence[Share], title: str
    ) -> list[Any]:
        """As `Executor.map`. The first result of a turn has the sums of all."""
        new, self._job = None if job is self._job else job, job
        results: list[Any] = []
        for start in range(0, len(shards), self.workers):
            own = shards[start : start + self.workers]
            shared = _shared([shard for shard in own if isinstance(shard, Shard)])
            idle = [None] * (self.workers - len(own))
            results += self._turn([_order(work, new, shard, shared) for shard in (*own, *idle)], shared)[
                : len(own)
            ]
            new = None
        return results

    def _turn(
        self, orders: Sequence[_Order | None] | None = None, shared: Sequence[Tensor] = ()
    ) -> list[Any]:
        """One turn of this rank. Rank 0 has the ``orders`` and ``shared`` vectors, and gets all results."""
        given: list[Any] = [None]
        dist.scatter_object_list(given, None if orders is None else list(orders))
        order = given[0]
        if order is None:
            return []
        self._job = order.job or self._job
        assert self._job is not None
        device = torch.device(self._job.device)
        if orders is None:
            shared = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in order.shared]
        for vector in shared:
            dist.broadcast(vector.contiguous(), 0)
        result, sums, error = None, dict[_Key, ExactSum](), None
        try:
            if order.shard is not None:
                for i, number in order.places.items():
                    order.shard.vectors[i] = shared[number]
                result = order.work(self._job, order.shard)
        except Exception as problem:  # the other ranks wait for this one
            error = problem
        if isinstance(result, Trained):
            result, sums = replace(result, sums={}), result.sums
        answers = [(error, _Sizes())] * self.workers
        sizes = {key: (_halves(part).shape[1], part.weight) for key, part in sums.items()}
        dist.all_gather_object(answers, (error, sizes))
        if failed := [each for each, _ in answers if each is not None]:
            if orders is None:
                return failed
            raise failed[0]
        merged = _merged(sums, [sizes for _, sizes in answers], device)
        results: list[Any] = [None] * self.workers
        dist.gather_object(result, results if orders is not None else None)
        if isinstance(results[0], Trained):
            results[0].sums = merged
        return results


def _shared(shards: Sequence[Shard]) -> list[Tensor]:
    """The vectors that are in several shards."""
    own = [{memory(vector): vector for vector in shard.vectors} for shard in shards]
    counts = Counter(key for vectors in own for key in vectors)
    everything = {key: vector for vectors in own for key, vector in vectors.items()}
    return [vector for key, vector in everything.items() if counts[key] > 1]


def _order(work: Callable, job: Work | None, shard: Share | None, shared: Sequence[Tensor]) -> _Order:
    """The order of one rank: its shard without the vectors that are broadcast."""
    numbers, places = {memory(vector): number for number, vector in enumerate(shared)}, dict[int, int]()
    if isinstance(shard, Shard):
        places = {i: numbers[memory(v)] for i, v in enumerate(shard.vectors) if memory(v) in numbers}
        left = [v.new_empty(0) if i in places else v for i, v in enumerate(shard.vectors)]
        shard = replace(shard, vectors=left)
    return _Order(work, job, shard, [(vector.shape, vector.dtype) for vector in shared], places)


def _merged(
    sums: dict[_Key, ExactSum], everywhere: Sequence[_Sizes], device: torch.device
) -> dict[_Key, ExactSum]:
    """The sums over all ranks."""
    merged: dict[_Key, ExactSum] = {}
    for key in sorted({key for own in everywhere for key in own}):
        abouts = [own.get(key, (0, 0.0)) for own in everywhere]
        size = max(size for size, _ in abouts)
        merged[key] = all_reduce(sums.get(key), size, [weight for _, weight in abouts], device)
    return merged


def all_reduce(part: ExactSum | None, size: int, weights: Sequence[float], device: torch.device) -> ExactSum:
    """The sum of the parts of all ranks, on every rank; the ranks call it together.

    ``part`` is this rank's, of vectors [``size``]; None if it has none. ``weights`` are those of all ranks, 0
    where there is no part. A rank sends and receives 32 bytes per entry, whatever the number of ranks. The
    result has the bits of the parts merged in the order of the ranks.
    """
    ranks = len(weights)
    columns = -(-size // ranks)
    halves = torch.zeros(2, ranks * columns, dtype=torch.float64, device=device)
    if part is not None:
        halves[:, :size] = _halves(part)
    slices = halves.view(2, ranks, columns).transpose(0, 1).contiguous()  # [ranks, 2, columns]
    mine = torch.empty_like(slices)  # the same columns, of all ranks
    dist.all_to_all_single(mine, slices)
    total = ExactSum()
    for own, weight in zip(mine, weights, strict=True):
        total.merge(_sum(own, weight))
    dist.all_gather_into_tensor(slices, _halves(total)[None].contiguous())
    return _sum(slices.transpose(0, 1).reshape(2, -1)[:, :size], total.weight)


def _halves(total: ExactSum) -> Tensor:
    """Both parts of a sum, [2, n]."""
    assert total.high is not None and total.low is not None
    return torch.stack([total.high, total.low])


def _sum(halves: Tensor, weight: float) -> ExactSum:
    """A sum of both its parts, [2, n]."""
    high, low = halves.clone()
    return ExactSum(high, low, weight)
