"""Calls of `torch.func.vmap` over the clients of a cohort, and such calls as CUDA graphs.

One kernel launch serves every client of a call. Small networks are bound by launches, so a call that recurs
with the same shapes is captured; from then on, all its local steps are one launch.
"""

import functools
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

GRAPHS = 16  # captured calls to keep
MOST_STEPS = 2000  # local steps of a captured call: each adds some hundred nodes to the graph
AGREEMENT = 1e-4  # tolerance between a replay and its call, relative to the largest entry

Tensors = dict[str, Tensor]
Run = Callable[["Call"], Tensors]


@dataclass
class Call:
    """A cohort call: the function of ``one`` client of named tensors, and its ``inputs``.

    Inputs in ``each`` have one entry per client, the others are common to all. ``about`` identifies the
    computation: calls with equal ``about`` and shapes differ only in the values of their inputs.
    """

    about: tuple[str, ...]
    one: Callable[[Tensors], Tensors]
    inputs: Tensors
    each: frozenset[str]

    def __call__(self) -> Tensors:
        """The outputs of all clients, stacked: name -> [C, ...]."""
        return self.on(self.inputs)

    def on(self, inputs: Tensors) -> Tensors:
        """The outputs for other inputs."""
        dims = {name: 0 if name in self.each else None for name in inputs}
        return torch.func.vmap(self.one, in_dims=(dims,))(inputs)

    @property
    def key(self) -> tuple:
        shapes = tuple((name, t.shape, t.dtype, name in self.each) for name, t in self.inputs.items())
        return threading.get_ident(), self.about, shapes


class Captured:
    """A call as a CUDA graph, which always reads and writes the same memory.

    Raises RuntimeError if the call cannot be captured.
    """

    def __init__(self, call: Call) -> None:
        self.one = call.one  # keeps tensors alive that the graph reads, such as the images
        self.inputs = {name: value.clone() for name, value in call.inputs.items()}
        self.graph = torch.cuda.CUDAGraph()
        # All graphs share memory: the outputs of a replay are read before the next one starts.
        with torch.cuda.graph(
            self.graph, pool=_pool(torch.cuda.current_device()), capture_error_mode="thread_local"
        ):
            self.outputs = call.on(self.inputs)

    def __call__(self, call: Call) -> Tensors:
        for name, value in call.inputs.items():
            self.inputs[name].copy_(value)
        self.graph.replay()
        return self.outputs


@dataclass
class _Kind:
    """The number of calls of one kind so far, and how calls run from the fourth on."""

    calls: int = 0
    run: Run = Call.__call__


class Cohorts:
    """Runs cohort calls; outputs are valid until the next one.

    The first call of a kind runs directly. The second also runs directly, and is captured. The third runs
    directly and is replayed with the same inputs: if both agree, later calls are replayed, else they run
    directly.
    """

    def __init__(self, capture: Callable[[Call], Run] = Captured) -> None:
        self.capture = capture
        self.kinds: OrderedDict[tuple, _Kind] = OrderedDict()
        self.widths: dict[tuple[str, ...], int] = {}  # clients that memory allows per call, by computation

    def run(self, call: Call) -> Tensors:
        """The outputs of all clients, stacked: name -> [C, ...]."""
        key = call.key
        kind = self.kinds.setdefault(key, _Kind())
        self.kinds.move_to_end(key)
        if len(self.kinds) > GRAPHS:
            self.kinds.popitem(last=False)
        if kind.calls >= 3:
            return kind.run(call)
        outputs = call()
        kind.calls += 1
        try:
            if kind.calls == 2:
                kind.run = self.capture(call)
            elif kind.calls == 3 and not _agree(kind.run(call), outputs):
                raise RuntimeError("its replay gives different numbers")
        except RuntimeError as error:  # also out of memory
            reason = str(error).splitlines()[0]
            warnings.warn(f"{call.about[0]}: cohorts run without a CUDA graph ({reason})", stacklevel=2)
            self.kinds[key] = _Kind(calls=3)
        return outputs


def _agree(replayed: Tensors, outputs: Tensors) -> bool:
    """Whether two outputs are equal up to rounding, with NaN in the same places."""
    return all(
        torch.allclose(
            replayed[name].double(), value.double(), rtol=0, equal_nan=True,
            atol=AGREEMENT * float(value.double().nan_to_num(0, 0, 0).abs().max()),
        )
        for name, value in outputs.items()
    )  # fmt: skip


@functools.cache
def _pool(device: int) -> Any:
    """The memory that the graphs of a device share."""
    return torch.cuda.graph_pool_handle()
