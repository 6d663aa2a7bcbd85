import pytest
from support import images

from fedflow.data import Dataset
from fedflow.simulation.federation import Federation


@pytest.fixture(scope="session")
def federation(digits: Dataset) -> Federation:
    """Eight clients with real images and a small dense network."""
    return images(digits)
