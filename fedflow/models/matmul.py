"""Convolution as a matrix product, for cohorts: every client has its own filters.

Under `torch.func.vmap` PyTorch makes one grouped convolution of them, a group per client, for which GPUs have
few fast kernels; batched matrix products of unfolded images are fast.
"""

from torch import Tensor, nn
from torch.nn import functional as F


class MatmulConv2d(nn.Conv2d):
    """`nn.Conv2d` (one group, zero padding) by unfolding: the same outputs up to rounding."""

    def forward(self, x: Tensor) -> Tensor:
        assert not isinstance(self.padding, str)
        height, width = (
            (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for size, pad, dilation, kernel, stride in zip(
                x.shape[-2:], self.padding, self.dilation, self.kernel_size, self.stride
            )
        )
        columns = F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)  # [B, C k k, H W]
        out = self.weight.flatten(1) @ columns
        out = out if self.bias is None else out + self.bias[:, None]
        return out.unflatten(-1, (height, width))


def use_matmul(module: nn.Module) -> nn.Module:
    """Replace every convolution of ``module`` that can be a matrix product; returns ``module``."""
    for layer in module.modules():
        plain = type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
        if plain and not isinstance(layer.padding, str):
            layer.__class__ = MatmulConv2d
    return module
