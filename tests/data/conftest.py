"""Small image files made for the data tests."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedflow.data import Dataset, DatasetParams, prepare


@pytest.fixture
def arrays() -> Callable[..., dict[str, np.ndarray]]:
    """Makes random images, ten for training and four for testing a class: ``arrays(classes, size)``."""

    def make(classes: int = 3, size: int = 4) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(0)
        made = {}
        for split, per_class in (("train", 10), ("test", 4)):
            n = classes * per_class
            made[f"x_{split}"] = rng.integers(0, 256, (n, size, size), np.uint8)
            made[f"y_{split}"] = np.arange(n) % classes
        return made

    return make


@pytest.fixture
def npz(tmp_path: Path, arrays: Callable) -> Callable[..., Path]:
    """Writes such arrays to an ``.npz``, some of them replaced, or left out where None."""

    def write(name: str = "small.npz", classes: int = 3, size: int = 4, **changes: object) -> Path:
        content = arrays(classes, size) | changes
        np.savez(tmp_path / name, **{key: value for key, value in content.items() if value is not None})
        return tmp_path / name

    return write


@pytest.fixture
def png() -> Callable[..., bytes]:
    """Makes a PNG file of one level: ``png(level, size, mode)``."""

    def make(level: int, size: int = 4, mode: str = "RGB") -> bytes:
        stream = io.BytesIO()
        Image.new(mode, (size, size), (level,) * 3 if mode == "RGB" else level).save(stream, "png")
        return stream.getvalue()

    return make


@pytest.fixture
def tree(png: Callable) -> dict[str, bytes]:
    """An image-folder tree by path, cats and dogs; the levels 100*split + 10*class + i tell them apart."""
    return {
        f"{split}/{label}/{i}.png": png(100 * s + 10 * c + i)
        for s, (split, count) in enumerate((("train", 3), ("test", 2)))
        for c, label in enumerate(("cat", "dog"))
        for i in range(count)
    }


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[dict[str, bytes]], Path]:
    """Writes files, by path, into a folder."""

    def write(files: dict[str, bytes]) -> Path:
        for name, content in files.items():
            (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "images" / name).write_bytes(content)
        return tmp_path / "images"

    return write


@pytest.fixture
def tar(tmp_path: Path) -> Callable[..., Path]:
    """Writes files, by path, into a tar, followed by ``extra`` members without content."""

    def write(files: dict[str, bytes], *extra: tarfile.TarInfo, mode: str = "w") -> Path:
        with tarfile.open(tmp_path / "images.tar", mode) as archive:  # type: ignore[call-overload]
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            for member in extra:
                archive.addfile(member)
        return tmp_path / "images.tar"

    return write


@pytest.fixture
def make(npz: Callable, tmp_path: Path) -> Callable[..., Dataset]:
    """Prepares the small arrays: ``make("folder name", pad=2)``."""

    def run(out: str = "out", **params: object) -> Dataset:
        return prepare(DatasetParams(source="npz", path=str(npz()), **params), tmp_path / out)

    return run
