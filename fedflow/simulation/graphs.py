"""Calls of `torch.func.vmap` over the clients of a cohort, and such calls as CUDA graphs.

One kernel launch serves every client of a call. Small networks are bound by launches, so a call that recurs
with the same shapes is captured; from then on, all its local steps are one launch.
"""

import contextlib
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GRAPHS = 16  # captured calls to keep
MOST_OPERATIONS = 200_000  # of a captured call: nodes of a graph, which cost memory and time to build
AGREEMENT = 1e-4  # tolerance between a replay and its call, relative to the largest entry

Tensors = dict[str, Tensor]
About = tuple[Any, ...]  # hashable; the first is a name
Replay = Callable[["Call"], Tensors]


@dataclass
class Call:
    """A cohort call: the function ``one`` of a client's named tensors, and its ``inputs``.

    Inputs in ``each`` have one entry per client, the others are common to all. ``about`` identifies the
    computation: calls with equal ``about`` and shapes differ only in the values of their inputs.
    """

    about: About
    one: Callable[[Tensors], Tensors]
    inputs: Tensors
    each: frozenset[str]

    def __call__(self) -> Tensors:
        """The outputs of all clients, stacked: name -> [C, ...]."""
        return self.on(self.inputs)

    def on(self, inputs: Tensors) -> Tensors:
        dims = {name: 0 if name in self.each else None for name in inputs}
        return torch.func.vmap(self.one, in_dims=(dims,))(inputs)

    @property
    def key(self) -> tuple[Any, ...]:
        shapes = tuple((name, t.shape, t.dtype, name in self.each) for name, t in self.inputs.items())
        return threading.get_ident(), self.about, shapes


class Pool:
    """The memory that the graphs of a `Cohorts` share: the outputs of a replay are read before the next one.

    The allocator keeps a pool only while one of its graphs exists, and may still record to the pool of a
    failed capture. So a graph without others, and one after a failure, gets a new pool.
    """

    def __init__(self) -> None:
        self._graphs: weakref.WeakSet[Captured] = weakref.WeakSet()
        self._handle: Any = None

    def handle_for(self, captured: "Captured") -> Any:
        if not self._graphs:
            self._handle = torch.cuda.graph_pool_handle()
        self._graphs.add(captured)
        return self._handle

    def leave(self) -> None:
        """Take a new pool for the next graph."""
        self._graphs.clear()


class Captured:
    """A call as a CUDA graph, which always reads and writes the same memory.

    Raises RuntimeError if the call cannot be captured.
    """

    def __init__(self, call: Call, pool: Pool) -> None:
        self.one = call.one  # keeps tensors alive that the graph reads, such as the images
        self.inputs = {name: value.clone() for name, value in call.inputs.items()}
        self.graph = torch.cuda.CUDAGraph()
        handle, stream = pool.handle_for(self), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(self.graph, pool=handle, capture_error_mode="thread_local"):
                self.outputs = call.on(self.inputs)
        except BaseException:
            pool.leave()
            # The capture's stream would stay current, unordered with the stream of everything else.
            torch.cuda.set_stream(stream)
            with contextlib.suppress(RuntimeError, AttributeError):  # else the allocator can free nothing
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), handle)
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize()
            raise

    def __call__(self, call: Call) -> Tensors:
        for name, value in call.inputs.items():
            self.inputs[name].copy_(value)
        self.graph.replay()
        return self.outputs


@dataclass
class _Kind:
    """The number of calls of one kind so far, and the function that runs calls from the fourth on."""

    calls: int = 0
    run: Replay = Call.__call__


class Cohorts:
    """Runs cohort calls; outputs are valid until the next one.

    The first call of a kind runs directly. The second also runs directly, and is captured. The third runs
    directly and is replayed with the same inputs: if both agree, later calls are replayed, else they run
    directly.
    """

    def __init__(self, capture: Callable[[Call, Pool], Replay] = Captured) -> None:
        self.capture, self.pool = capture, Pool()
        self.kinds: OrderedDict[tuple[Any, ...], _Kind] = OrderedDict()
        self.widths: dict[About, int] = {}  # clients that memory allows per call, by computation

    def run(self, call: Call) -> Tensors:
        key = call.key
        kind = self.kinds.setdefault(key, _Kind())
        self.kinds.move_to_end(key)
        if len(self.kinds) > GRAPHS:
            self.kinds.popitem(last=False)
        if kind.calls >= 3:
            return kind.run(call)
        kind.calls += 1
        if kind.calls == 1:
            return call()
        with Operations() if kind.calls == 2 else contextlib.nullcontext() as operations:
            outputs = call()
        try:
            if operations is not None:
                if operations.count > MOST_OPERATIONS:
                    raise RuntimeError(
                        f"{operations.count:,} operations; at most {MOST_OPERATIONS:,} fit one"
                    )
                kind.run = self.capture(call, self.pool)
            elif not agree(kind.run(call), outputs):
                raise RuntimeError("its replay gives different numbers")
        except RuntimeError as error:  # also out of memory
            reason = str(error).splitlines()[0]
            warnings.warn(f"{call.about[0]}: cohorts run without a CUDA graph ({reason})", stacklevel=2)
            self.kinds[key] = _Kind(calls=3)
        return outputs


class Operations(TorchDispatchMode):
    """Counts the operations that reach the device within this context, roughly the nodes of its graph.

    ``written``: bytes of their results, except of views.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = self.written = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        results = function(*args, **(kwargs or {}))
        given, made = (
            {leaf.untyped_storage() for leaf in tree_leaves(tensors) if isinstance(leaf, Tensor)}
            for tensors in ((args, kwargs), results)
        )
        self.written += sum(storage.nbytes() for storage in made - given)
        return results


def agree(replayed: Tensors, outputs: Tensors) -> bool:
    """True if two outputs [C, ...] are equal up to rounding, with NaN in the same entries.

    They are compared client by client, as a copy of all of them might not fit into the memory.
    """
    return all(_agree(replayed[name], value) for name, value in outputs.items())


def _agree(replayed: Tensor, values: Tensor) -> bool:
    if not values.numel():  # an empty part of a model
        return replayed.shape == values.shape
    largest = max(float(row.float().nan_to_num(0, 0, 0).abs().max()) for row in values)
    return all(
        torch.allclose(again.float(), row.float(), rtol=0, atol=AGREEMENT * largest, equal_nan=True)
        for again, row in zip(replayed, values, strict=True)
    )
