"""LeNet-5 as used in the federated-learning literature: two unpadded 5x5 convolutions, three dense layers."""

from torch import Tensor, nn
from torch.nn import functional as F

from fedflow.models.channels import Channels


class LeNet5(nn.Module):
    """Conv 6 - pool - conv 16 - pool - dense 120 - dense 84 - dense K, ReLU between.

    62,006 parameters for 3x32x32 and 10 classes, 44,426 for 1x28x28. ``batch_norm`` puts one
    BatchNorm after each convolution (62,050). Source: LeCun et al. 1998, with ReLU and max pooling.
    """

    head_patterns = ("fc3.*",)
    shared_patterns = ("fc2.*", "fc3.*")

    def __init__(self, input_shape: tuple[int, int, int], num_classes: int, batch_norm: bool = False) -> None:
        super().__init__()
        channels, height, width = input_shape
        if min(height, width) < 16:
            raise ValueError("it needs 16x16 pixels or more")
        flat = 16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        self.conv1, self.conv2 = nn.Conv2d(channels, 6, 5), nn.Conv2d(6, 16, 5)
        if batch_norm:
            self.channels = Channels("conv1", "norm1", "conv2"), Channels("conv2", "norm2", "fc1")
        self.norm1 = nn.BatchNorm2d(6) if batch_norm else nn.Identity()
        self.norm2 = nn.BatchNorm2d(16) if batch_norm else nn.Identity()
        self.fc1, self.fc2, self.fc3 = nn.Linear(flat, 120), nn.Linear(120, 84), nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.norm1(self.conv1(x)), 2))  # as ReLU first, but on fewer entries
        x = F.relu(F.max_pool2d(self.norm2(self.conv2(x)), 2))
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))
