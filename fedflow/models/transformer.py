"""Small transformers, over patches of images and over tokens."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Attention of ``heads`` heads of ``width``, then a dense layer ``mlp`` wide, over tokens [..., n, d].

    If ``causal``, tokens attend only to themselves and earlier tokens.
    """

    def __init__(
        self, dim: int, mlp: int, heads: int, width: int, activation: type[nn.Module], causal: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.width, self.causal = heads, width, causal
        self.norm, self.qkv = nn.LayerNorm(dim), nn.Linear(dim, 3 * heads * width, bias=False)
        self.out = nn.Linear(heads * width, dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, mlp), activation(), nn.Linear(mlp, dim))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, self.width)).transpose(-4, -2)
        x = x + self.out(self.attended(*parts.unbind(-3)).transpose(-3, -2).flatten(-2))
        return x + self.mlp(x)

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Means of values ``v``, weighted by similarity of queries ``q`` and keys ``k``: [..., n, width]."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


class _Transformer(nn.Module):
    """Blocks of `Attention` with GELU and normalization first, over tokens with learned positions."""

    head_patterns = ("classifier.*",)

    def __init__(
        self, tokens: int, num_classes: int, dim: int, depth: int, heads: int, mlp: int, causal: bool
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError("dim is not a multiple of heads")
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, dim))
        options = dim, mlp, heads, dim // heads, nn.GELU, causal
        self.blocks = nn.Sequential(*(Attention(*options) for _ in range(depth)))
        self.norm, self.classifier = nn.LayerNorm(dim), nn.Linear(dim, num_classes)


class ViT(_Transformer):
    """A vision transformer over square patches; the mean of all tokens is classified.

    141,130 parameters for 3x32x32 and 10 classes. Source: Dosovitskiy et al., ICLR 2021, without a class
    token and with learned positions of standard deviation 0.02.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        patch: int = 4,
        dim: int = 64,
        depth: int = 4,
        heads: int = 4,
        mlp: int = 128,
    ) -> None:
        channels, height, width = input_shape
        if height % patch or width % patch:
            raise ValueError(f"it needs sides divisible by {patch}")
        super().__init__(height * width // patch**2, num_classes, dim, depth, heads, mlp, causal=False)
        self.patches = nn.Conv2d(channels, dim, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.classifier(self.norm(self.blocks(tokens)).mean(1))


class CharTransformer(_Transformer):
    """A causal transformer over characters, whole numbers 0..K-1: the next one after the last.

    82,128 parameters for sequences of 80 of 80 characters. Source: Vaswani et al., NeurIPS 2017, with
    normalization first and learned positions.
    """

    tokens = True

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        dim: int = 64,
        depth: int = 2,
        heads: int = 4,
        mlp: int = 128,
    ) -> None:
        super().__init__(input_shape[0], num_classes, dim, depth, heads, mlp, causal=True)
        self.embedding = nn.Embedding(num_classes, dim)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.blocks(self.embedding(x) + self.positions)
        return self.classifier(self.norm(tokens[:, -1]))
