"""Layers for cohorts, in which clients have different weights and short batches are padded.

Under `torch.func.vmap` some layers have no rule and run client by client, others have a rule that moves far
more memory than needed, and BatchNorm would count padding. These layers have the same outputs up to rounding.
"""

import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedflow.models.matmul import use_matmul
from fedflow.models.transformer import Attention


class Real(threading.local):
    """Mask of the samples [B] in this thread's call that are not padding, or None for all."""

    samples: Tensor | None = None


class _Normalized(torch.autograd.Function):
    """Groups of channels of images [B, C, ...] with mean 0 and variance 1; a cohort is one batch.

    PyTorch's rule splits the gradient of a cohort into a dozen passes over all images.
    """

    @staticmethod
    def forward(x: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        return torch.native_group_norm(x, None, None, *_sizes(x), groups, eps)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor, int, float], outputs: tuple[Tensor, ...]) -> None:
        x, context.groups, context.eps = inputs
        context.save_for_backward(x, *outputs[1:])
        context.mark_non_differentiable(*outputs[1:])

    @staticmethod
    def backward(context: Any, g: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        x, mean, scale = context.saved_tensors
        return _Gradient.apply(g, x, mean, scale, context.groups, context.eps), None, None

    @staticmethod
    def vmap(info: Any, dims: tuple, x: Tensor, groups: int, eps: float) -> tuple[tuple, tuple]:
        outputs = _Normalized.apply(x.movedim(dims[0], 0).flatten(0, 1), groups, eps)
        return tuple(out.unflatten(0, (info.batch_size, -1)) for out in outputs), (0, 0, 0)


class _Gradient(torch.autograd.Function):
    """The gradient of `_Normalized`, from the gradient ``g`` [B, C, ...] of its output."""

    @staticmethod
    def forward(g: Tensor, x: Tensor, mean: Tensor, scale: Tensor, groups: int, eps: float) -> Tensor:
        given = g.contiguous(), x.contiguous(), mean, scale, None, *_sizes(x), groups, [True, False, False]
        return torch.ops.aten.native_group_norm_backward(*given)[0]

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        g, x, _, _, context.groups, context.eps = inputs
        context.save_for_backward(g, x)

    @staticmethod
    def backward(context: Any, up: Tensor) -> tuple[Any, ...]:
        def plain(g: Tensor, x: Tensor) -> Tensor:
            values = x.unflatten(1, (context.groups, -1)).flatten(2)  # [B, groups, values]
            var, mean = torch.var_mean(values, -1, correction=0, keepdim=True)
            scale = torch.rsqrt(var + context.eps)
            normal, g = (values - mean) * scale, g.unflatten(1, (context.groups, -1)).flatten(2)
            centered = g - g.mean(-1, keepdim=True) - normal * (g * normal).mean(-1, keepdim=True)
            return (scale * centered).view_as(x)

        return *torch.func.vjp(plain, *context.saved_tensors)[1](up), None, None, None, None

    @staticmethod
    def vmap(info: Any, dims: tuple, *inputs: Any) -> tuple[Tensor, int]:
        clients = info.batch_size
        folded = [_client_first(t, d, clients).flatten(0, 1) for t, d in zip(inputs[:4], dims)]
        return _Gradient.apply(*folded, *inputs[4:]).unflatten(0, (clients, -1)), 0


def _client_first(t: Tensor, dim: int | None, clients: int) -> Tensor:
    return t.expand(clients, *t.shape) if dim is None else t.movedim(dim, 0)


def _sizes(x: Tensor) -> tuple[int, int, int]:
    """Images, channels and positions of ``x`` [B, C, ...]."""
    return x.shape[0], x.shape[1], x[0, 0].numel()


class CohortGroupNorm(nn.GroupNorm):
    """`nn.GroupNorm` of all clients' images as one batch, scaled per client."""

    def forward(self, x: Tensor) -> Tensor:
        out, *_ = _Normalized.apply(x, self.num_groups, self.eps)
        return _scaled(out, self.weight, self.bias) if self.affine else out


class CohortBatchNorm(_BatchNorm):
    """BatchNorm over real samples.

    In training it replaces the running statistics instead of changing them, as clients may share them.
    """

    real: Real

    def forward(self, x: Tensor) -> Tensor:
        values = x if x.dtype.itemsize > 2 else x.float()  # under autocast
        if self.training or self.running_mean is None:
            mean, var, count = self._moments(values)
        else:
            assert self.running_var is not None
            mean, var = self.running_mean, self.running_var
        if self.training and self.running_mean is not None:
            assert self.momentum is not None and self.running_var is not None
            unbiased = var * (count / (count - 1).clamp(min=1))
            self.running_mean = torch.lerp(self.running_mean, mean.detach(), self.momentum)
            self.running_var = torch.lerp(self.running_var, unbiased.detach(), self.momentum)
        out = (values - _per_channel(mean, x)) * _per_channel(torch.rsqrt(var + self.eps), x)
        return (_scaled(out, self.weight, self.bias) if self.affine else out).to(x.dtype)

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance [channels] over real samples and all positions, and the number of values."""
        dims, positions = (0, *range(2, x.ndim)), x[0, 0].numel()
        real = self.real.samples
        ones = x.new_ones(len(x)) if real is None else real.to(x.dtype)
        count = ones.sum() * positions
        weight = (ones / count.clamp(min=1)).view(-1, *[1] * (x.ndim - 1))
        mean = (x * weight).sum(dims)
        return mean, ((x - _per_channel(mean, x)).square() * weight).sum(dims), count


class CohortLSTM(nn.LSTM):
    """A unidirectional `nn.LSTM` as matrix products and pointwise operations, position by position."""

    def forward(self, x: Tensor, state: None = None) -> tuple[Tensor, None]:  # type: ignore[override]
        assert state is None, "sequences start from zeros"
        out = x if self.batch_first else x.transpose(0, 1)
        for layer in range(self.num_layers):
            inner, outer, *biases = (getattr(self, name) for name in self._all_weights[layer])
            gates = out @ inner.T + (sum(biases) if biases else 0)  # of all positions [B, L, 4 H]
            h = c = gates.new_zeros(len(gates), self.hidden_size)
            shown = []
            for given in gates.unbind(1):
                i, f, g, o = torch.addmm(given, h, outer.T).chunk(4, -1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                shown.append(h)
            out = torch.stack(shown, 1)
        return (out if self.batch_first else out.transpose(0, 1)), None


class CohortAttention(Attention):
    """`Attention` as matrix products: PyTorch's kernel for CPUs has no rule."""

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        alike = q @ k.mT * self.width**-0.5
        if self.causal:
            n = alike.shape[-1]
            before = torch.ones(n, n, dtype=torch.bool, device=alike.device).tril()
            alike = alike.where(before, -torch.inf)
        return alike.softmax(-1) @ v


def for_cohorts(module: nn.Module, real: Real, convolution: str) -> nn.Module:
    """Replace every layer of ``module`` that has a form for cohorts; return ``module``."""
    for layer in module.modules():
        if isinstance(layer, nn.GroupNorm):
            layer.__class__ = CohortGroupNorm
        elif isinstance(layer, _BatchNorm):
            layer.__class__ = CohortBatchNorm
            layer.__dict__["real"] = real
        elif isinstance(layer, nn.LSTM) and not (layer.bidirectional or layer.proj_size):
            layer.__class__ = CohortLSTM
        elif isinstance(layer, Attention):
            layer.__class__ = CohortAttention
    return use_matmul(module) if convolution == "matmul" else module


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """``values`` [channels], shaped to broadcast with ``x`` [B, channels, ...]."""
    return values.view(-1, *[1] * (x.ndim - 2))


def _scaled(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.addcmul(_per_channel(shift, x), x, _per_channel(scale, x))
