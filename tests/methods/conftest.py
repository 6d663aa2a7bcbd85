import pytest
from support import forbid_fallback, images

from fedflow.data import Dataset
from fedflow.simulation.federation import Federation


@pytest.fixture(scope="session")
def federation(digits: Dataset) -> Federation:
    """Eight clients with real images and a small dense network."""
    return images(digits)


@pytest.fixture(params=["loop", pytest.param("vmap", marks=pytest.mark.full)])
def cohort(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How clients are trained. The battery compares both ways for every method."""
    if request.param == "vmap":
        forbid_fallback(monkeypatch)
    return request.param
