"""The convolutional network of AAggFF on CelebA."""

from collections.abc import Sequence

from torch import Tensor, nn

from fedflow.models.binary import classifier, start_xavier


class CelebaCNN(nn.Module):
    """Four 3x3 convolutions of ``filters``, each with GroupNorm, 2x2 max pooling and ReLU; pool 5x5; dense K.

    The convolutions have no biases, ``groups`` are those of the norms, ``pool_padding`` is the padding of
    the max pools; the last pool is an average. Two classes share one logit: 29,569 parameters for 3x84x84.
    Source: AAggFF's code. Xavier's normal start, biases 0.
    """

    head_patterns = ("classifier.*",)

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        filters: int = 32,
        groups: Sequence[int] = (32, 16, 8, 4),
        pool_padding: int = 1,
    ) -> None:
        super().__init__()
        channels = input_shape[0]
        self.features = nn.Sequential()
        for count in groups:
            self.features += nn.Sequential(
                nn.Conv2d(channels, filters, 3, padding=1, bias=False),
                nn.GroupNorm(count, filters),
                nn.MaxPool2d(2, padding=pool_padding),
                nn.ReLU(),
            )
            channels = filters
        self.features.append(nn.AdaptiveAvgPool2d(5))
        self.classifier = classifier(25 * filters, num_classes)
        start_xavier(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))
