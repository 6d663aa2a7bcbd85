from pathlib import Path

import pytest
import torch
from hypothesis import settings
from support import forbid_fallback

from fedflow.data import Dataset, DatasetParams, prepare

settings.register_profile("untimed", deadline=None)  # a busy machine is no fault
settings.load_profile("untimed")

LONGEST = (
    "test_pipeline.py",
)  # files that take minutes begin first: else one process ends long after the others


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """One thread per worker, as a run has it: this is what makes runs bit-identical."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Real images, 8x8 grey: 1,438 for training and 359 for testing."""
    folder: Path = tmp_path_factory.mktemp("digits")
    return prepare(DatasetParams(source="digits"), folder)


@pytest.fixture(scope="session")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Real digits, padded to the 28x28 that convolutions need."""
    return prepare(DatasetParams(source="digits", pad=10), tmp_path_factory.mktemp("padded"))


@pytest.fixture(params=["loop", "vmap"])
def cohort(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How clients are trained; "vmap" must not fall back to the loop unnoticed."""
    if request.param == "vmap":
        forbid_fallback(monkeypatch)
    return request.param


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files are handed to processes in this order."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Functions by name: an address in memory would differ between the processes that run the tests."""
    return getattr(val, "__name__", None) if callable(val) else None
