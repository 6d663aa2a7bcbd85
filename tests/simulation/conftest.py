import pytest
from support import images

from fedflow.data import Dataset
from fedflow.simulation.federation import Federation


@pytest.fixture(scope="module")
def federation(digits: Dataset) -> Federation:
    """Eight clients with real images, and a server with 60 images."""
    return images(digits)
