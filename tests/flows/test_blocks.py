"""A run on one GPU, without the GPU: the process itself trains, and rounds are Prefect tasks in blocks."""

from contextlib import nullcontext

import pytest

from tasks import gpu
from tasks.gpu import OneGpu


@pytest.fixture
def one_gpu(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FEDFLOW_CACHE", str(tmp_path / "fedflow"))
    monkeypatch.setattr("flows.federate.executor_for", lambda engine: nullcontext(OneGpu()))


@pytest.mark.parametrize(
    ("seconds", "blocks"),
    [
        pytest.param(0.0, {"rounds from 1", "rounds from 2", "rounds from 3"}, marks=pytest.mark.full),
        pytest.param(60.0, {"rounds from 1"}, marks=pytest.mark.full),
    ],
)
def test_rounds_in_blocks_give_the_bytes_of_the_plain_loop(
    one_gpu, federate, expected, root, results, seen, monkeypatch, seconds, blocks
) -> None:
    monkeypatch.setattr(gpu, "BLOCK", seconds)
    federate("ditto")
    assert results(root, "ditto") == expected("ditto")
    names = {task.name for task in seen("federate").tasks if task.name.startswith(("rounds", "round "))}
    assert names == blocks | {"rounds from 4"}  # which finds none left


@pytest.mark.full
def test_a_round_that_fails_ends_the_run_and_the_next_command_resumes(
    one_gpu, federate, expected, root, results, monkeypatch
) -> None:
    trained = OneGpu.map

    def failing(self: OneGpu, work, job, shards, title):  # type: ignore[no-untyped-def]
        if title.startswith("round 2"):
            raise MemoryError("no memory left")
        return trained(self, work, job, shards, title)

    with monkeypatch.context() as patch, pytest.raises(MemoryError, match="no memory left"):
        patch.setattr(OneGpu, "map", failing)
        federate("fedavg")
    federate("fedavg")
    assert results(root) == expected("fedavg")
