"""Reports of clients about their labels, before they train."""

import torch
from torch import Tensor

from fedflow.local.client import Client


def labels(client: Client) -> tuple[Tensor, int]:
    """The labels of all samples of a client, flat, and the number of classes of its network.

    Raises `ValueError` if the targets are not classes.
    """
    x, y = client.data()
    if y.is_floating_point() or y.dtype == torch.bool:
        raise ValueError("clients are compared by their labels, and these targets are not classes")
    blank = torch.zeros(client.model.size, dtype=client.model.dtype, device=x.device)
    return y.flatten(), client.model.outputs(blank, x[:1]).shape[-1]


def label_shares(client: Client) -> Tensor:
    """The share of every class among the client's labels [C]."""
    y, classes = labels(client)
    return torch.bincount(y, minlength=classes).to(client.model.dtype) / len(y)
