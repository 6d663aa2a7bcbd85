from pathlib import Path

import pytest
from result_folders import METHODS, write_partition, write_run


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with ``results`` (5 methods x 2 partitions x 2 seeds) and ``partitions``."""
    for partition in ("mnist5k-dir", "mnist5k-groups"):
        for method in METHODS:
            for seed in (0, 1):
                write_run(tmp_path / "results", partition, method, seed, groups=partition.endswith("groups"))
    write_partition(tmp_path / "partitions", "mnist5k-dir", scheme="dirichlet", alpha=0.1)
    write_partition(tmp_path / "partitions", "mnist5k-groups", scheme="label_groups", groups=2)
    return tmp_path
