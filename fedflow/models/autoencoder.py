"""Autoencoders of images: an ``encoder`` to a latent vector [e] and a ``decoder`` back to the image.

The targets are the inputs; the loss of a sample is its mean squared error. ``span`` is the range of pixels.
"""

from typing import ClassVar

from torch import Tensor, nn


class Autoencoder(nn.Module):
    """Base of both: the ``decoder`` after the ``encoder``."""

    span: ClassVar[tuple[float, float]] = (0.0, 1.0)
    encoder: nn.Module
    decoder: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square().flatten(1).mean(1)


class ConvAE(Autoencoder):
    """FLT's autoencoder of gray images: two convolutions with pools, a dense layer, two transposed ones.

    51,577 parameters for 1x28x28 and e = 128, of which the encoder has 25,956. Source: Jamali-Rad et al.,
    Table 13; two pools and 4 channels give its total.
    """

    def __init__(self, input_shape: tuple[int, int, int], latent: int = 128) -> None:
        super().__init__()
        channels, height, width = input_shape
        if height % 4 or width % 4:
            raise ValueError("it needs sides divisible by 4")
        flat = 4 * (height // 4) * (width // 4)
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(flat, latent),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, flat),
            nn.Unflatten(1, (4, height // 4, width // 4)),
            nn.ConvTranspose2d(4, 16, 2, stride=2),
            nn.ReLU(),
            nn.ConvTranspose2d(16, channels, 2, stride=2),
            nn.Sigmoid(),
        )


class ResidualAE(Autoencoder):
    """FLT's autoencoder of color images: strided convolutions, BatchNorm, two residual blocks on each side.

    For 3x32x32: 812,123 parameters with e = 64, 877,723 with e = 128. Source: the authors' code.
    """

    span = (-1.0, 1.0)

    def __init__(self, input_shape: tuple[int, int, int], latent: int = 128) -> None:
        super().__init__()
        channels, height, width = input_shape
        if height % 4 or width % 4:
            raise ValueError("it needs sides divisible by 4")
        flat = 8 * (height // 4) * (width // 4)
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, 64, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.BatchNorm2d(64),
            nn.Conv2d(64, 128, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.BatchNorm2d(128),
            nn.Conv2d(128, 128, 3, padding=1),
            nn.BatchNorm2d(128),
            Residual(),
            Residual(),
            nn.ReLU(),
            nn.Conv2d(128, 64, 1),
            nn.ReLU(),
            nn.BatchNorm2d(64),
            nn.Conv2d(64, 8, 1),
            nn.ReLU(),
            nn.BatchNorm2d(8),
            nn.Flatten(),
            nn.Linear(flat, latent),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, flat),
            nn.Unflatten(1, (8, height // 4, width // 4)),
            nn.ConvTranspose2d(8, 64, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 128, 1),
            nn.ReLU(),
            Residual(),
            Residual(),
            nn.ReLU(),
            nn.Conv2d(128, 128, 3, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(128, 64, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(64, channels, 4, stride=2, padding=1),
        )


class Residual(nn.Module):
    """x + conv1x1(ReLU(conv3x3(ReLU x))), 128 channels through 32, without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(128, 32, 3, padding=1, bias=False),
            nn.ReLU(),
            nn.Conv2d(32, 128, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)
