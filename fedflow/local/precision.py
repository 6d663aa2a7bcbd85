"""Products on a GPU: the same bits in every run, and tf32 in local steps only.

PyTorch's switches are global to the process.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def use_plain_products() -> None:
    """Products are deterministic, and in float32 outside of `tf32`.

    By default, PyTorch's convolutions are in tf32, and cuDNN may add their gradients in any order.
    """
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


@contextmanager
def tf32() -> Iterator[None]:
    """Within this context, products on a GPU are in tf32. Threads that share a GPU take turns."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        use_plain_products()
