"""Networks with energies as logits: smooth activations, and a last layer of spectral norm 1."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ACTIVATIONS = {"relu": F.relu, "silu": F.silu}


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
        self.register_buffer("v", F.normalize(torch.randn(in_features), dim=0))
        self.iterate(15)

    @torch.no_grad()
    def iterate(self, times: int = 1) -> None:
        """Power iterations, in place; many after the weight was set."""
        for _ in range(times):
            self.u.copy_(F.normalize(self.weight @ self.v, dim=0))
            self.v.copy_(F.normalize(self.weight.T @ self.u, dim=0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.iterate()
        u, v = F.normalize(self.u, dim=0), F.normalize(self.v, dim=0)  # means over clients are shorter than 1
        return F.linear(x, self.weight / (u @ (self.weight @ v)), self.bias)


def _xavier(network: nn.Module) -> None:
    """Xavier's normal weights for convolutions and linear layers, biases 0."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        if isinstance(layer, SpectralLinear):
            layer.iterate(15)


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, without an activation after their sum."""

    def __init__(self, inside: int, outside: int, stride: int, activation: str) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(outside // 2, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(outside // 2, outside)
        self.shortcut = nn.Sequential()
        if stride > 1 or inside != outside:
            conv = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.shortcut += nn.Sequential(conv, nn.GroupNorm(outside // 2, outside))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(self.activation(self.norm1(self.conv1(x)))))
        return out + self.shortcut(x)


class ResNet10(nn.Module):
    """Conv 64 - four blocks, 64, 128, 256, 512, each but the first of stride 2 - dense K, without pooling.

    GroupNorm (2 channels per group in blocks). 4,979,914 parameters for 1x32x32 and 10 classes, 4,981,066 for
    3x32x32. ``activation`` is relu or silu; with ``spectral``, the last layer has spectral norm 1.
    Source: FedEvg's code.
    """

    head_patterns = ("fc.*",)

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        activation: str = "silu",
        spectral: bool = True,
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.activation = ACTIVATIONS[activation]
        self.stem, self.norm1 = nn.Conv2d(channels, 64, 3, 1, 1, bias=False), nn.GroupNorm(16, 64)
        blocks = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        self.blocks = nn.Sequential(*(_Block(*shape, activation) for shape in blocks))
        self.norm2 = nn.GroupNorm(64, 512)
        features = 512 * -(-height // 8) * -(-width // 8)
        self.fc = (SpectralLinear if spectral else nn.Linear)(features, num_classes)
        _xavier(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.activation(self.norm1(self.stem(x))))
        return self.fc(self.activation(self.norm2(x)).flatten(1))


class EnergyCNN(nn.Module):
    """Conv 16 of 3x3 - conv 32 of 3x3, stride 2 - dense K; padded. For images of any size.

    ``activation`` is relu or silu; with ``spectral``, the last layer has spectral norm 1.
    """

    head_patterns = ("fc.*",)

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        activation: str = "silu",
        spectral: bool = True,
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.activation = ACTIVATIONS[activation]
        self.conv1, self.conv2 = nn.Conv2d(channels, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 2, 1)
        features = 32 * -(-height // 2) * -(-width // 2)
        self.fc = (SpectralLinear if spectral else nn.Linear)(features, num_classes)
        _xavier(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.conv2(self.activation(self.conv1(x))))
        return self.fc(x.flatten(1))
