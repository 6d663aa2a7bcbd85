import pytest
from support import images

from fedflow.data import Dataset
from fedflow.simulation.federation import Federation


@pytest.fixture(scope="session")
def federation(digits: Dataset) -> Federation:
    """Eight clients with real images and a small dense network."""
    return images(digits)


@pytest.fixture(scope="session")
def levelled(digits: Dataset) -> Federation:
    """The same clients with a small network that has two exits, and channels to leave out."""
    return images(digits, network="cnn_exit", filters=(8, 8, 8))
