"""Network architectures by name, with the parameter counts of their papers."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fedflow.errors import BadInput, unknown_name
from fedflow.models.cnn import CNN
from fedflow.models.lenet import LeNet5
from fedflow.models.linear import Linear
from fedflow.models.lstm import CharLSTM, StackedLSTM
from fedflow.models.mlp import MLP
from fedflow.models.resnet9 import ResNet9


@dataclass(frozen=True)
class Architecture:
    """A named network: its class and options, its use, and the inputs for which parameters are counted."""

    build: Callable[..., nn.Module]
    about: str
    options: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (3, 32, 32)
    classes: int = 10


MNIST = (1, 28, 28)

ARCHITECTURES: dict[str, Architecture] = {
    "lenet5": Architecture(LeNet5, "LeNet-5 with ReLU and max pooling; clustered FL, curricula"),
    "lenet5_bn": Architecture(LeNet5, "LeNet-5 with BatchNorm; Sub-FedAvg pruning", {"batch_norm": True}),
    "resnet9": Architecture(ResNet9, "ResNet-9 with GroupNorm; CIFAR-100 of clustered FL", classes=100),
    "logistic": Architecture(MLP, "logistic regression", {"hidden": ()}, MNIST),
    "mlp": Architecture(MLP, "one hidden layer of 200; IFCA on rotated MNIST, FLT (dropout 0.5)", {}, MNIST),
    "mlp_feddyn": Architecture(MLP, "hidden layers 200, 200; FedDyn on MNIST", {"hidden": (200, 200)}, MNIST),
    "twonn": Architecture(
        MLP, "three hidden layers of 200 without biases; SuPerFed's TwoNN",
        {"hidden": (200, 200, 200), "bias": False}, MNIST,
    ),
    "cnn": Architecture(CNN, "conv 32, 64, dense 512, as McMahan et al. on MNIST (unpadded)", {}, MNIST),
    "cnn_mcmahan": Architecture(CNN, "McMahan et al. 2017 on MNIST, padded", {"padding": 2}, MNIST),
    "cnn_leaf": Architecture(CNN, "LEAF on FEMNIST; FLT, IFCA", {"padding": 2, "hidden": (2048,)}, MNIST, 62),
    "cnn_feddyn": Architecture(
        CNN, "conv 64, 64, dense 384, 192; FedDyn on CIFAR", {"filters": (64, 64), "hidden": (384, 192)}
    ),
    "cnn_mnist": Architecture(
        CNN, "conv 10, 20, dense 50; Sub-FedAvg on MNIST", {"filters": (10, 20), "hidden": (50,)}, MNIST
    ),
    "cnn_mnist_bn": Architecture(
        CNN, "the same with BatchNorm", {"filters": (10, 20), "hidden": (50,), "batch_norm": True}, MNIST
    ),
    "simple_cnn": Architecture(
        CNN, "conv 32, 64 of 3x3, one pool, dense 128; the speed benchmark of pfl-research, without dropout",
        {"kernel": 3, "one_pool": True, "hidden": (128,)},
    ),
    "cnn_pfl": Architecture(
        CNN, "the same with dropout 0.25 and 0.5, as in the speed benchmark of pfl-research on CIFAR-10",
        {"kernel": 3, "one_pool": True, "hidden": (128,), "feature_dropout": 0.25, "dropout": 0.5},
    ),
    "twocnn": Architecture(
        CNN,
        "conv 32, 64, dense 200, 200 without biases; SuPerFed on CIFAR-10 made 28x28",
        {"hidden": (200, 200), "padding": 1, "pool_padding": 1, "bias": False},
        (3, 28, 28),  # 3,136 features, as published; 32x32 images give 4,096
    ),
    "char_lstm": Architecture(
        CharLSTM, "next character, 2-layer LSTM 256 without biases; SuPerFed on Shakespeare", {}, (80,), 80
    ),
    "char_lstm_feddyn": Architecture(
        CharLSTM, "the same with LSTM 100 and biases; FedDyn on Shakespeare", {"hidden": 100, "bias": True},
        (80,), 80,
    ),
    "stacked_lstm": Architecture(
        StackedLSTM, "next word at every position, 2-layer LSTM 256; AAggFF on Reddit", {}, (10,), 10_000
    ),
    "linear": Architecture(Linear, "linear regression; IFCA on mixed regression", {}, (1000,), 1),
}  # fmt: skip


def build(name: str, input_shape: tuple[int, ...], num_classes: int, **options: Any) -> nn.Module:
    """The named network for inputs of ``input_shape``: images (C, H, W), features (d,) or tokens (L,).

    Networks for tokens, whole numbers 0..num_classes-1, declare ``tokens = True``.
    Raises `BadInput` for an unknown name or option, and for inputs that do not fit, such as small images.
    """
    if name not in ARCHITECTURES:
        raise unknown_name("model.name", name, ARCHITECTURES)
    architecture = ARCHITECTURES[name]
    for option in options:
        if option not in known_options(name):
            raise unknown_name(f"model.options.{option}", option, known_options(name))
    try:
        module = architecture.build(input_shape, num_classes, **(architecture.options | options))
        with torch.no_grad():
            kind = torch.int64 if getattr(module, "tokens", False) else torch.float32
            module.eval()(torch.zeros(1, *input_shape, dtype=kind))
    except (RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        inputs = f"{'images' if len(input_shape) == 3 else 'inputs'} {input_shape}"
        raise BadInput("model.name", name, f"a network and options that fit {inputs} ({error})") from error
    return module.train()


def known_options(name: str) -> list[str]:
    """The options of the named architecture."""
    parameters = inspect.signature(ARCHITECTURES[name].build).parameters
    return [p for p in parameters if p not in ("input_shape", "num_classes")]


def describe() -> list[dict[str, Any]]:
    """One row per architecture: name, description, and parameter count for its usual inputs."""
    rows = []
    for name, entry in ARCHITECTURES.items():
        module = build(name, entry.shape, entry.classes)
        count = sum(p.numel() for p in module.parameters())
        inputs = "x".join(map(str, entry.shape))
        rows.append(
            {
                "name": name,
                "about": entry.about,
                "inputs": inputs,
                "classes": entry.classes,
                "parameters": f"{count:,}",
            }
        )
    return rows
