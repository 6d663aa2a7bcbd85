"""Network architectures by name, with the parameter counts of their papers."""

from fedflow.models.celeba import CelebaCNN
from fedflow.models.cnn import CNN
from fedflow.models.energy import EnergyCNN, ResNet10
from fedflow.models.exits import CNNExit, PreActResNetExit
from fedflow.models.lenet import LeNet5
from fedflow.models.linear import Linear
from fedflow.models.lstm import CharLSTM, StackedLSTM
from fedflow.models.m5 import M5
from fedflow.models.mlp import MLP
from fedflow.models.mobilenet_v2 import MobileNetV2
from fedflow.models.mobilevit import MobileViT
from fedflow.models.preact_resnet import PreActResNet
from fedflow.models.registry import ARCHITECTURES, Architecture, architecture, build, describe, known_options
from fedflow.models.resnet import ResNet
from fedflow.models.resnet9 import ResNet9
from fedflow.models.shufflenet import ShuffleNetV2
from fedflow.models.superfed import VGG9, MobileNet, ResNet9BN
from fedflow.models.transformer import CharTransformer, ViT

__all__ = ["ARCHITECTURES", "Architecture", "architecture", "build", "describe", "known_options"]

MNIST = (1, 28, 28)

ARCHITECTURES |= {
    "lenet5": Architecture(LeNet5, "LeNet-5 with ReLU and max pooling; clustered FL, curricula"),
    "lenet5_bn": Architecture(LeNet5, "LeNet-5 with BatchNorm; Sub-FedAvg pruning", {"batch_norm": True}),
    "resnet9": Architecture(ResNet9, "ResNet-9 with GroupNorm; CIFAR-100 of clustered FL", classes=100),
    "resnet9_bn": Architecture(
        ResNet9BN,
        "BatchNorm without running statistics; SuPerFed's ResNet-9 on CIFAR-100 made 28x28",
        {},
        (3, 28, 28),
        100,
    ),
    "resnet18_gn": Architecture(
        ResNet, "ResNet-18 with GroupNorm (2 groups); FedDyn on CIFAR-10", {"groups": 2, "imagenet": True}
    ),
    "resnet34_bn": Architecture(
        ResNet, "ResNet-34 for CIFAR, with BatchNorm; DiSK", {"depths": (3, 4, 6, 3)}, classes=100
    ),
    "resnet18_bn": Architecture(ResNet, "ResNet-18 for CIFAR, with BatchNorm; DiSK", classes=100),
    **{
        f"resnet10_{size}": Architecture(
            ResNet,
            f"ResNet-10 for CIFAR, {', '.join(map(str, widths))}; DiSK",
            {"widths": widths, "depths": (1, 1, 1, 1)},
            classes=100,
        )
        for size, widths in {
            "bn": (64, 128, 256, 512),
            "l": (32, 64, 128, 256),
            "m": (16, 32, 64, 128),
            "s": (8, 16, 32, 64),
            "xs": (8, 16, 16, 32),
            "xxs": (8, 8, 16, 16),
        }.items()
    },
    **{
        name: Architecture(
            ResNet,
            f"{title}, for CIFAR; SimKD, DiSK",
            {"stem": stem, "widths": widths, "depths": (depth,) * 3},
            classes=100,
        )
        for name, title, stem, widths, depth in (
            ("resnet32x4", "ResNet-32x4", 32, (64, 128, 256), 5),
            ("resnet8x4", "ResNet-8x4", 32, (64, 128, 256), 1),
            ("wrn40_2", "WRN-40-2", 16, (32, 64, 128), 6),
            ("wrn40_1", "WRN-40-1", 16, (16, 32, 64), 6),
            ("wrn16_2", "WRN-16-2", 16, (32, 64, 128), 2),
        )
    },
    "shufflenet_v2": Architecture(ShuffleNetV2, "ShuffleNetV2 (1x) for CIFAR; SimKD, DiSK", classes=100),
    "mobilenet_v2": Architecture(
        MobileNetV2, "MobileNetV2 for CIFAR, MobileNetV2x2 of SimKD and DiSK", classes=100
    ),
    "preact_resnet18_gn": Architecture(
        PreActResNet, "pre-activation ResNet-18 with GroupNorm (2 groups); side losses", classes=100
    ),
    "preact_resnet34_gn": Architecture(
        PreActResNet, "the same with 34 layers; their teacher", {"depths": (3, 4, 6, 3)}, classes=100
    ),
    "preact_resnet18_exit": Architecture(
        PreActResNetExit, "pre-activation ResNet-18 with GroupNorm and two exits; FedHeN on CIFAR"
    ),
    "logistic": Architecture(MLP, "logistic regression", {"hidden": ()}, MNIST),
    "logistic_one_logit": Architecture(
        MLP,
        "the same for two classes, with a sigmoid; AAggFF on Berka and Heart",
        {"hidden": (), "one_logit": True},
        (15,),
        2,
    ),
    "mlp": Architecture(MLP, "one hidden layer of 200; IFCA on rotated MNIST, FLT (dropout 0.5)", {}, MNIST),
    "mlp_feddyn": Architecture(MLP, "hidden layers 200, 200; FedDyn on MNIST", {"hidden": (200, 200)}, MNIST),
    "twonn": Architecture(
        MLP,
        "three hidden layers of 200 without biases; SuPerFed's TwoNN",
        {"hidden": (200, 200, 200), "bias": False, "xavier": True, "head_layers": 2},
        MNIST,
    ),
    "cnn": Architecture(CNN, "conv 32, 64, dense 512, as McMahan et al. on MNIST (unpadded)", {}, MNIST),
    "cnn_mcmahan": Architecture(CNN, "McMahan et al. 2017 on MNIST, padded", {"padding": 2}, MNIST),
    "cnn_leaf": Architecture(CNN, "LEAF on FEMNIST; FLT, IFCA", {"padding": 2, "hidden": (2048,)}, MNIST, 62),
    "cnn_feddyn": Architecture(
        CNN, "conv 64, 64, dense 384, 192; FedDyn on CIFAR", {"filters": (64, 64), "hidden": (384, 192)}
    ),
    "cnn_5conv": Architecture(
        CNN,
        "five conv 64 of 3x3, dense 384, 192; stands for MOML's 5 CNN, whose details are not given",
        {"filters": (64,) * 5, "hidden": (384, 192), "kernel": 3, "padding": 1},
        classes=5,
    ),
    "cnn_miniimagenet": Architecture(
        CNN,
        "conv 64, 64, 64, dense 400, 100; PFLDyn on miniImageNet",
        {"filters": (64, 64, 64), "hidden": (400, 100)},
        (3, 84, 84),
        5,
    ),
    "cnn_gn": Architecture(
        CNN,
        "conv 32, 64, 64 of 3x3 with GroupNorm (2 groups); side losses on two cores",
        {"filters": (32, 64, 64), "hidden": (), "kernel": 3, "padding": 1, "groups": 2},
        classes=100,
    ),
    "cnn_exit": Architecture(
        CNNExit, "conv 32, 64, 128 of 3x3 with GroupNorm and two exits; FedHeN and HeteroFL on two cores"
    ),
    "cnn_mnist": Architecture(
        CNN, "conv 10, 20, dense 50; Sub-FedAvg on MNIST", {"filters": (10, 20), "hidden": (50,)}, MNIST
    ),
    "cnn_mnist_bn": Architecture(
        CNN, "the same with BatchNorm", {"filters": (10, 20), "hidden": (50,), "batch_norm": True}, MNIST
    ),
    "simple_cnn": Architecture(
        CNN,
        "conv 32, 64 of 3x3, one pool, dense 128; the speed benchmark of pfl-research, without dropout",
        {"kernel": 3, "one_pool": True, "hidden": (128,)},
    ),
    "cnn_pfl": Architecture(
        CNN,
        "the same with dropout 0.25 and 0.5, as in the speed benchmark of pfl-research on CIFAR-10",
        {"kernel": 3, "one_pool": True, "hidden": (128,), "feature_dropout": 0.25, "dropout": 0.5},
    ),
    "twocnn": Architecture(
        CNN,
        "conv 32, 64, dense 200, 200 without biases; SuPerFed on CIFAR-10 made 28x28",
        {
            "hidden": (200, 200),
            "padding": 1,
            "pool_padding": 1,
            "bias": False,
            "xavier": True,
            "head_layers": 3,
        },
        (3, 28, 28),  # 3,136 features, as published; 32x32 images give 4,096
    ),
    "vgg9": Architecture(
        VGG9, "six convolutions and two dense layers without biases; SuPerFed on FEMNIST", {}, MNIST, 62
    ),
    "mobilenet": Architecture(
        MobileNet,
        "depthwise separable, BatchNorm without running statistics; SuPerFed on TinyImageNet",
        {},
        (3, 64, 64),
        200,
    ),
    "celeba_cnn": Architecture(
        CelebaCNN,
        "four conv 32 with GroupNorm, one logit for two classes; AAggFF on CelebA",
        {},
        (3, 84, 84),
        2,
    ),
    "mobilevit": Architecture(
        MobileViT, "MobileViT-XXS, with BatchNorm; AAggFF on TinyImageNet", {}, (3, 64, 64), 200
    ),
    "vit": Architecture(ViT, "patches of 4x4, 4 blocks of attention with 4 heads, 64 wide; a small ViT"),
    "m5": Architecture(
        M5, "conv on raw sound, with BatchNorm; AAggFF on SpeechCommands", {}, (1, 16_000), 35
    ),
    "char_lstm": Architecture(
        CharLSTM, "next character, 2-layer LSTM 256 without biases; SuPerFed on Shakespeare", {}, (80,), 80
    ),
    "char_lstm_feddyn": Architecture(
        CharLSTM,
        "the same with LSTM 100 and biases; FedDyn on Shakespeare",
        {"hidden": 100, "bias": True},
        (80,),
        80,
    ),
    "stacked_lstm": Architecture(
        StackedLSTM, "next word at every position, 2-layer LSTM 256; AAggFF on Reddit", {}, (10,), 10_000
    ),
    "char_transformer": Architecture(
        CharTransformer, "next character, 2 causal blocks of attention with 4 heads, 64 wide", {}, (80,), 80
    ),
    "resnet10": Architecture(
        ResNet10,
        "ResNet-10 with GroupNorm and SiLU, last layer of spectral norm 1; FedEvg (options "
        "activation: relu, spectral: false for its rivals)",
        {},
        (1, 32, 32),
    ),
    "cnn_energy": Architecture(
        EnergyCNN,
        "conv 16, 32 of 3x3 with SiLU, last layer of spectral norm 1; FedEvg on two cores",
        {},
        (1, 8, 8),
    ),
    "linear": Architecture(Linear, "linear regression; IFCA on mixed regression", {}, (1000,), 1),
}
