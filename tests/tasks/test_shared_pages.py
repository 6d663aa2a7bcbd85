"""Worker processes share the pages of the images: no process has its own copy."""

import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

from fedflow.simulation.federation import FederationFiles

PARTITION = "scheme: iid, clients: 4, label_noise: {kind: symmetric, ratio: 0.2}"
IMAGES, SIDE = 5_000, 100  # 50 MB


def memory(what: str) -> float:
    """MB of this process: ``Anonymous`` is what it shares with no file and no other process."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.findall(rf"{what}:\s+(\d+) kB", text)[0]) * 1024 / 1e6


def read_all(files: FederationFiles) -> dict[str, float]:
    """By how many MB the memory of a new process grows while it reads every image, and by a copy of them."""
    torch.set_num_threads(1)
    torch.zeros(SIDE * SIDE * 100).add_(1)  # what the first batch allocates once
    own, all_pages = memory("Anonymous"), memory("Rss")
    train = files.open().train
    for start in range(0, len(train), 100):
        train.inputs(torch.arange(start, start + 100))
    grown = {"own": memory("Anonymous") - own, "all": memory("Rss") - all_pages}
    copy = train.x.clone()
    return grown | {"copied": memory("Anonymous") - own, "images": copy.nbytes / 1e6}


@pytest.fixture
def files(tmp_path: Path) -> FederationFiles:
    from command import one_cell, prepared_project  # here, because the processes need none of it

    from fedflow.stages.experiment import Experiment

    x, y = np.zeros((IMAGES, SIDE, SIDE), np.uint8), np.arange(IMAGES) % 10
    x += (y * 20).astype(np.uint8)[:, None, None]
    np.savez(tmp_path / "large.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    source = f"{{source: npz, path: {tmp_path / 'large.npz'}}}"
    params = prepared_project(
        tmp_path, one_cell(source, "{name: mlp, options: {hidden: [2]}}", PARTITION), "few"
    )
    return Experiment(params, "few", "fedavg", 0, tmp_path).job.federation


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
def test_worker_processes_share_the_images(files, workers):
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for grown in pool.map(read_all, [files] * workers):
            assert grown["images"] == 50
            assert grown["all"] > 50  # it has read them all
            assert grown["own"] < 30, grown
            assert grown["copied"] > 50  # a copy would be seen
