"""Dropout with noise that is a function of keys and positions, not the next numbers of a generator.

A unit is dropped depending on the key of its client, the position of the call (pass, step, call in the step,
layer) and its position in the batch. So the plain loop, vmapped cohorts with padding, captured graphs and
compiled steps drop the same units (docs/decisions/0018).
"""

import copy
import functools
import threading

import torch
from torch import Tensor, nn

from fedflow.seeding import torch_seed

CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
DRAWS = "it draws random numbers in training outside these layers: Dropout, Dropout1d, Dropout2d, Dropout3d"
DROPOUT = (nn.Dropout, *CHANNELS)  # layers that `KeyedDropout` replaces
Key = tuple[int | Tensor, int | Tensor]  # 32 bits each: numbers, or int32 scalars in cohorts and compilers


def noise_key(seed: int) -> tuple[int, int]:
    """The key of a ``seed`` of 64 bits."""
    return _signed(seed), _signed(seed >> 32)


class Noise(threading.local):
    """The noise of this thread's training calls."""

    key: Key
    given: Key | None = None  # replaces `next_call`
    _pass = _step = _calls = 0

    def seed(self, key: Key) -> None:
        """Count passes from the first with ``key``."""
        self.key, self._pass = key, 0
        self.at_step(0)

    def next_pass(self) -> None:
        """Count steps from the first of the next pass."""
        self._pass += 1
        self.at_step(0)

    def at_step(self, step: int) -> None:
        """Count calls from the first of a step of this pass."""
        self._step, self._calls = step, 0

    def next_call(self) -> Key:
        """The key of the next call of this step."""
        self._calls += 1
        return _moved(self.key, "call", self._pass, self._step, self._calls)

    def start_call(self) -> None:
        """Count the layers of a training call."""
        self._call, self._layers = self.given or self.next_call(), 0

    def kept(self, x: Tensor, p: float) -> Tensor:
        """Mask of units that the next layer keeps with probability 1 - ``p``, bool in the shape of ``x``.

        The mask of a sample of ``x`` [B, ...] does not depend on the samples after it, such as padding.
        """
        self._layers += 1
        first, second = _moved(self._call, "layer", self._layers)
        units = torch.arange(x.numel(), dtype=torch.int32, device=x.device).mul_(_STEP) + first
        return (_mixed(units, second) >= round(p * 2**32) - 2**31).view(x.shape)


class KeyedDropout(nn.Module):
    """Dropout with the noise of this thread instead of the process's generator.

    With ``channels``, whole channels of ``x`` [B, C, ...] are dropped.
    """

    def __init__(self, p: float, noise: Noise, channels: bool = False) -> None:
        super().__init__()
        self.p, self.noise, self.channels = p, noise, channels

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        units = x.flatten(2)[..., 0].view(*x.shape[:2], *[1] * (x.dim() - 2)) if self.channels else x
        return x * self.noise.kept(units, self.p).to(x.dtype) / (1 - self.p)  # bool times float is slow


def draws_otherwise(layer: nn.Module) -> bool:
    """True if a layer draws from the process's generator, so that results would depend on the workers."""
    dropout = getattr(layer, "dropout", 0.0) if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) else 0.0
    other = isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout) and layer.p > 0
    return dropout > 0 or other or isinstance(layer, nn.RReLU)


def _signed(number: int) -> int:
    """The lowest 32 bits of ``number`` as an int32."""
    return (number + 2**31) % 2**32 - 2**31


_STEP, _FIRST, _SECOND = map(_signed, (0x9E3779B9, 0x7FEB352D, 0x846CA68B))
_offset = functools.lru_cache(1 << 16)(lambda *position: noise_key(torch_seed(0, *position)))


def _moved(key: Key, *position: str | int) -> Key:
    """The key of a position; the offset is the same for every client, so that the device only adds it."""
    first, second = (k + d for k, d in zip(key, _offset(*position)))
    return _wrapped(first), _wrapped(second)


def _wrapped(number: int | Tensor) -> int | Tensor:
    return number if isinstance(number, Tensor) else _signed(number)


def _mixed(x: Tensor, key: int | Tensor) -> Tensor:
    """Pseudo-random bits from ``x`` (int32, overwritten), different for every ``key``.

    This is the mixer lowbias32 (C. Wellons, Prospecting for hash functions, 2018) with the key added before
    both products; otherwise the noise of two keys would be one sequence from two starts. Products wrap.
    """
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x += key
    x *= _FIRST
    x ^= (x >> 15).bitwise_and_(0x1FFFF)
    x *= _SECOND
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    return x


def zeros(module: nn.Module, count: int, input_shape: tuple[int, ...]) -> Tensor:
    """Inputs [count, ...] of the type that ``module`` takes."""
    kind = torch.int64 if getattr(module, "tokens", False) else torch.float32
    return torch.zeros(count, *input_shape, dtype=kind)


def draws_in_forward(module: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """True if a training call draws from the process's generator outside the layers in `DROPOUT`."""
    module = copy.deepcopy(module).train()
    for layer in module.modules():
        if isinstance(layer, DROPOUT):
            layer.eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        module(zeros(module, 2, input_shape))
        return not torch.equal(before, torch.get_rng_state())
