"""M5: one-dimensional convolutions on raw sound."""

from itertools import pairwise

from torch import Tensor, nn

from fedflow.models.binary import classifier, start_xavier
from fedflow.models.channels import in_order


class M5(nn.Module):
    """Convolutions 64 (80 wide, stride 4), 64, 128, 256 (3 wide) with BatchNorm, ReLU and pools of 4; dense.

    The inputs are waves [C, L], with ``base`` filters in the first layer; the last maps are averaged over
    time. 150,819 parameters for 1x16000 and 35 words. Source: Dai et al., "Very deep convolutional neural
    networks for raw waveforms", ICASSP 2017, as in AAggFF's code. Xavier's normal start, biases 0.
    """

    head_patterns = ("classifier.*",)

    def __init__(self, input_shape: tuple[int, int], num_classes: int, base: int = 64) -> None:
        super().__init__()
        channels, length = input_shape
        if length < 1100:
            raise ValueError("it needs waves of 1,100 values or more")
        widths = (base, base, 2 * base, 4 * base)
        self.features = _block(channels, base, kernel=80, stride=4)
        for inside, outside in pairwise(widths):
            self.features += _block(inside, outside, kernel=3, padding=1)
        self.classifier = classifier(4 * base, num_classes)
        self.channels = in_order(self)
        start_xavier(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean(-1))


def _block(inside: int, outside: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(inside, outside, kernel, stride, padding),
        nn.BatchNorm1d(outside),
        nn.ReLU(),
        nn.MaxPool1d(4),
    )
