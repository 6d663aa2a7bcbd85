import pytest
import torch
from support import images

from fedflow.data import Dataset
from fedflow.simulation.federation import Federation


@pytest.fixture(scope="module")
def federation(digits: Dataset) -> Federation:
    return images(digits, (12, 7, 9), dtype=torch.float64)
