import pytest
from support import images, way

from fedflow.data import Dataset
from fedflow.simulation.federation import Federation


@pytest.fixture(scope="session")
def federation(digits: Dataset) -> Federation:
    """Eight clients with real images and a small dense network."""
    return images(digits)


@pytest.fixture(params=["loop", pytest.param("vmap", marks=pytest.mark.full)])
def cohort(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way to train clients. The battery compares both for every method."""
    return way(request.param, monkeypatch)
