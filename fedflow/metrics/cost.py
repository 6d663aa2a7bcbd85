"""Cost of a network: multiplications of a forward pass, and traffic as papers count it."""

import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

FLOAT = 32  # bits of a parameter


def macs(module: nn.Module, input_shape: Iterable[int], dtype: torch.dtype = torch.float32) -> dict[str, int]:
    """Multiply-accumulate operations for one input of this shape and type, by layer name.

    Convolutions and matrix products count, by the formulas of ``torch.utils.flop_counter`` (2 FLOPs each);
    biases, norms, activations and pools do not. Zero weights count too: savings by a mask are counted on the
    smaller network without the masked channels.
    """
    # The meta device would do, but imports torch's compiler, which takes seconds. Double precision avoids
    # oneDNN and its fused LSTM, which has no formula.
    module = copy.deepcopy(module).cpu().double().eval()
    counter = FlopCounter()
    for name, layer in module.named_modules():
        layer.register_forward_pre_hook(partial(counter.enter, name))
        layer.register_forward_hook(counter.leave)
    kind = torch.float64 if dtype.is_floating_point and not getattr(module, "tokens", False) else torch.int64
    with torch.no_grad(), counter, _plain_attention():
        module(torch.zeros(1, *input_shape, dtype=kind))
    return {name: flops // 2 for name, flops in counter.flops.items()}


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention in products of matrices: PyTorch's fused operation has no formula."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class FlopCounter(TorchDispatchMode):
    """Count FLOPs within this context, by the layer entered last; "" is outside of all layers.

    torch's `FlopCounterMode` has hooks on all modules of the process, which would also run in threads that
    train meanwhile. It also imports torch's compiler.
    """

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry  # it imports Triton

        super().__init__()
        self.formulas = flop_registry
        self.flops: Counter[str] = Counter()
        self.running = [""]  # layers, from the outside in

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # skipping it would import it, which takes seconds

    def enter(self, name: str, *_: Any) -> None:
        self.running.append(name)

    def leave(self, *_: Any) -> None:
        self.running.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if formula := self.formulas.get(func.overloadpacket):
            self.flops[self.running[-1]] += formula(*args, **(kwargs or {}), out_val=result)
        return result


def exchanged_bytes(exchanges: float, down: float, up: float, bits: float = 0) -> float:
    """Traffic of a run in bytes, as papers count it in advance: by numbers of parameters, of 32 bits.

    In each of the ``exchanges`` (rounds times clients per round), a client receives ``down`` parameters and
    sends ``up`` parameters and ``bits`` entries of a mask.

    >>> exchanged_bytes(300 * 10, down=21_840, up=21_840) / 1e6  # MB of FedAvg on MNIST in Sub-FedAvg
    524.16
    """
    return exchanges * (FLOAT * (down + up) + bits) / 8
