"""Compiled code on disk: its key, which sees every change of a computation, and its folders."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from filelock import FileLock, Timeout
from torch import Tensor
from torch.nn import functional as F

from fedflow.local.fast.kept import calls, kept

Function = Callable[[Tensor, Tensor], Tensor]


def gradient(function: Function, *shape: int) -> list[str]:
    a, b = torch.ones(*shape, requires_grad=True), torch.ones(*shape)
    return calls(lambda: torch.autograd.grad(function(a, b).sum(), a), [a, b])


def halved(a: Tensor, b: Tensor) -> Tensor:
    return (a * 0.5 + b).relu()


def test_equal_computations_have_equal_keys() -> None:
    """Also if a tensor is saved for its gradient, and whatever the values are."""
    assert gradient(halved, 3, 4) == gradient(lambda a, b: (a * 0.5 + b).relu(), 3, 4)
    assert calls(lambda: torch.ones(2) * 3, []) == calls(lambda: torch.ones(2) * 3, [])


@pytest.mark.parametrize(
    "other",
    [
        lambda a, b: (a * 0.25 + b).relu(),
        lambda a, b: (b * 0.5 + a).relu(),
        lambda a, b: (a * 0.5 + a).relu(),
        lambda a, b: F.leaky_relu(a * 0.5 + b),
        lambda a, b: (a * 0.5 + b).relu().detach() + a,
        lambda a, b: (a.t() * 0.5 + b.t()).relu(),
        lambda a, b: (a * torch.tensor(0.5) + b).relu(),
    ],
    ids=["number", "places", "tensor", "operator", "gradient", "layout", "constant"],
)
def test_other_computations_have_other_keys(other: Function) -> None:
    assert gradient(other, 3, 4) != gradient(halved, 3, 4)


def test_keys_depend_on_the_content_of_constants_and_on_shapes() -> None:
    one, two = (gradient(lambda a, b, c=c: a * torch.tensor([c, 2.0]), 2) for c in (1.0, 1.5))
    assert one != two
    assert gradient(halved, 3, 4) != gradient(halved, 4, 3)


def half(folder: Path) -> None:
    (folder / "half.so").touch()
    raise KeyboardInterrupt


def test_unfinished_code_of_a_killed_compiler_is_deleted_and_finished_code_is_kept(tmp_path: Path) -> None:
    place = tmp_path / "of" / "code"

    def whole(folder: Path) -> None:
        assert not [*folder.iterdir()] and not place.exists()
        with pytest.raises(Timeout), FileLock(f"{place}.lock", timeout=0, is_singleton=False):
            pass
        (folder / "whole.so").touch()

    with pytest.raises(KeyboardInterrupt):
        kept(place, half)
    assert not place.exists()
    for make in (whole, half):
        assert kept(place, make) == place
    assert [file.name for file in place.iterdir()] == ["whole.so"]
    assert [file.name for file in place.parent.iterdir() if file.is_dir()] == ["code"]
    assert place.stat().st_mode & 0o777 == place.parent.stat().st_mode & 0o777 == 0o700


def test_code_that_others_can_write_is_not_executed(tmp_path: Path) -> None:
    place = kept(tmp_path / "code", lambda folder: None)
    place.chmod(0o770)
    with pytest.raises(PermissionError, match="is not private to this user"):
        kept(place, half)
