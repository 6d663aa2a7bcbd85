"""A linear layer of spectral norm 1."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize


class SpectralLinear(nn.Linear):
    """A linear layer whose weight W is divided by its largest singular value, u^T W v.

    The buffers u [K] and v [d] take one power iteration in every call in training mode; biases are as usual.
    Source: Miyato et al., "Spectral Normalization for Generative Adversarial Networks", ICLR 2018.
    """

    u: Tensor
    v: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.register_buffer("u", torch.randn(out_features))
        self.register_buffer("v", normalize(torch.randn(in_features), dim=0))
        self.iterate(15)

    @torch.no_grad()
    def iterate(self, times: int = 1) -> None:
        """Power iterations, in place; many after the weight was set."""
        for _ in range(times):
            self.u.copy_(normalize(self.weight @ self.v, dim=0))
            self.v.copy_(normalize(self.weight.T @ self.u, dim=0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.iterate()
        u, v = normalize(self.u, dim=0), normalize(self.v, dim=0)  # means over clients are shorter than 1
        return linear(x, self.weight / (u @ (self.weight @ v)), self.bias)
