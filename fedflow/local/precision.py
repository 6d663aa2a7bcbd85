"""tf32 for the products of local steps only. PyTorch's switches are global to the process."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def need_float32() -> None:
    """Products on a GPU are in float32 outside of `tf32`; PyTorch's default for convolutions is tf32."""
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
        need_float32()
