"""The convolutional network of AAggFF on CelebA."""

from torch import Tensor, nn

from fedflow.models.binary import classifier, start_xavier


class CelebaCNN(nn.Module):
    """Four 3x3 convolutions of 32 filters, each with GroupNorm, 2x2 max pooling and ReLU; pool 5x5; dense K.

    The convolutions have no biases, the norms 32, 16, 8 and 4 groups; max pools are padded, the last pool is
    an average. Two classes share one logit: 29,569 parameters for 3x84x84. Weights start by Xavier's normal
    distribution, biases from 0. Source: AAggFF's code.
    """

    head_patterns = ("classifier.*",)

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        channels = input_shape[0]
        self.features = nn.Sequential()
        for groups in (32, 16, 8, 4):
            self.features += nn.Sequential(
                nn.Conv2d(channels, 32, 3, padding=1, bias=False),
                nn.GroupNorm(groups, 32),
                nn.MaxPool2d(2, padding=1),
                nn.ReLU(),
            )
            channels = 32
        self.features.append(nn.AdaptiveAvgPool2d(5))
        self.classifier = classifier(25 * 32, num_classes)
        start_xavier(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))
