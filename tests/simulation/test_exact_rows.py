"""The kernel of exact sums without a GPU: by Triton's interpreter, and by the code that it compiles to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="PyTorch brings Triton on Linux only")
HOME = Path(__file__).parents[2]
PROGRAM = """
import torch
from fedflow.simulation import exact
from fedflow.simulation.exact_rows import add_rows

rng = torch.Generator().manual_seed(0)
rows = torch.randn(7, 3001, generator=rng) * torch.logspace(-6, 3, 3001)
calls = [(rows, [3.0, 50, 1, 0.37, 8, 2, 1e-3]), (rows[:, ::2], [1.0] * 7), (rows[:1], [7.0])]
for dtype in torch.float32, torch.float64:
    for given, weights in calls:
        sums = exact.ExactSum(), exact.ExactSum(), exact.ExactSum()
        for kernel, total in zip((add_rows, None), sums):
            exact._kernel = lambda device: kernel
            total.add_rows(given.to(dtype), weights)
            total.add_rows(given.to(dtype).flip(0), weights)
        for part in given, given.flip(0):
            for row, weight in zip(part.to(dtype), weights):
                sums[2].add(row, weight)
        first, second, third = sums
        assert torch.equal(first.high, third.high) and torch.equal(first.low, third.low)
        assert torch.equal(first.mean(torch.float32), second.mean(torch.float32))
        assert first.weight == second.weight == third.weight
"""


def test_the_kernel_adds_as_the_operations_do() -> None:
    """Bit for bit those of row after row, and rounded those of halving; strided and single rows too."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(HOME)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True)


def test_products_and_sums_are_rounded_one_by_one() -> None:
    """In the PTX of an H100; with fusion, which is Triton's default, there would be an FMA."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from fedflow.simulation.exact_rows import BLOCK, _add_rows

    sums = {"scale": "*fp64", "high": "*fp64", "low": "*fp64"}
    signature = {
        "rows": "*fp32",
        **sums,
        "columns": "i32",
        "stride": "i32",
        "count": "i32",
        "block": "constexpr",
    }
    source = ASTSource(_add_rows, signature, constexprs={"block": BLOCK})
    found = {}
    for fusion in (False, True):
        options = {"enable_fp_fusion": fusion}
        code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
        found[fusion] = "fma" in code
    assert found == {False: False, True: True}


def test_a_machine_that_cannot_compile_it_says_so_once(monkeypatch) -> None:
    from fedflow.simulation import exact, exact_rows

    assert exact._kernel("cpu") is None
    monkeypatch.delattr(exact_rows, "add_rows")
    exact._kernel.cache_clear()
    with pytest.warns(UserWarning, match="sums on the GPU are several operations, not one"):
        assert exact._kernel("cuda") is None
    assert exact._kernel("cuda") is None
    exact._kernel.cache_clear()
