"""`ExactSum.add_rows` on a GPU as one kernel: every row is read once, and the sum stays in registers."""

import torch
import triton
from torch import Tensor
from triton import language as tl

BLOCK = 1024  # columns of a program


@triton.jit  # type: ignore[untyped-decorator]
def _add_rows(
    rows: tl.tensor,
    scale: tl.tensor,
    high: tl.tensor,
    low: tl.tensor,
    columns: int,
    stride: int,
    count: int,
    block: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    real = at < columns
    upper = tl.load(high + at, mask=real, other=0.0)
    lower = tl.load(low + at, mask=real, other=0.0)
    for c in range(count):
        term = tl.load(rows + at, mask=real, other=0.0).to(tl.float64) * tl.load(scale + c)
        total = upper + term
        back = total - upper
        lower += (upper - (total - back)) + (term - back)
        upper = total
        rows += stride
    tl.store(high + at, upper, mask=real)
    tl.store(low + at, lower, mask=real)


def add_rows(rows: Tensor, scale: Tensor, high: Tensor, low: Tensor) -> None:
    """Add ``scale`` [C] times ``rows`` [C, n] to a sum in two parts [n] (float64), in place, row after row.

    A product and a sum must not become one operation, which rounds once and would lose the rounding error.
    """
    count, columns = rows.shape
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    with torch.cuda.device_of(rows):
        _add_rows[(triton.cdiv(columns, BLOCK),)](
            rows, scale, high, low, columns, rows.stride(0), count, BLOCK, enable_fp_fusion=False
        )
