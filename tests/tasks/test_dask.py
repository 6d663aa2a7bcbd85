"""Workers of a local Dask cluster, one per GPU, on a machine without any; sums that are merged on workers."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from distributed import Client
from prefect.states import Completed, Failed, State

from fedflow.errors import FedflowError
from fedflow.simulation.exact import ExactSum
from fedflow.simulation.job import Trained, merged_sums
from tasks import shards
from tasks.dask import environments, local_cluster, merged_on_workers

VARIABLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv(VARIABLE, raising=False)


def named(*gpus: str) -> list[dict[str, str]]:
    return [{VARIABLE: gpu} for gpu in gpus]


def test_each_gpu_has_one_worker(four_gpus, monkeypatch) -> None:
    assert environments(2, on_gpus=True) == named("0", "1", "2", "3")
    monkeypatch.setenv(VARIABLE, "7,GPU-5,2,0")  # the driver's own choice, by number or name
    assert environments(2, on_gpus=True) == named("7", "GPU-5", "2", "0")


@pytest.mark.parametrize(("gpus", "on_gpus"), [(0, True), (1, True), (4, False)])
def test_otherwise_there_are_as_many_workers_as_asked_for(four_gpus, monkeypatch, gpus, on_gpus) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert environments(3, on_gpus) == [{}, {}, {}]


def test_shards_on_several_gpus_do_not_wait_for_one_another(four_gpus, monkeypatch) -> None:
    given = []
    runner = SimpleNamespace(submit=lambda task, parameters: given.append(parameters["in_turn"]))
    monkeypatch.setattr(shards.PrefectExecutor, "_new_runner", lambda self: nullcontext(runner))
    engine = SimpleNamespace(executor="dask", workers=2, address=None, device="auto")
    executor = shards.executor_for(engine).__enter__()
    assert executor.workers == 4
    executor._submit(len, SimpleNamespace(device="cuda"), SimpleNamespace(content=""), "round 1", 1)
    assert given == [False]


def test_every_worker_sees_its_own_gpu() -> None:
    with local_cluster(named("3", "GPU-5")) as cluster, Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(2)
        assert sorted(client.run(os.getenv, VARIABLE).values()) == ["3", "GPU-5"]
        addresses = [cluster.scheduler_address, *client.nthreads()]
        assert all(address.startswith("tcp://127.0.0.1:") for address in addresses)
        assert set(client.nthreads().values()) == {1}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Three workers in this process."""
    with Client(
        n_workers=3, threads_per_worker=1, processes=False, dashboard_address=None, set_as_default=False
    ) as made:
        yield made


def trained(worker: int) -> Trained:
    rng = torch.Generator().manual_seed(worker)
    result = Trained([worker], [(10 + worker, "why")])
    for group in {0, worker % 2}:
        total = ExactSum()
        total.add(torch.randn(50, generator=rng, dtype=torch.float64) * 10.0 ** (20 * worker), 1 / 3)
        result.sums["model", group] = total
    return result


def answer(worker: int) -> State:
    return Completed(data=trained(worker))


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_sums_that_are_merged_on_workers_have_the_same_bits(client: Client, workers: int) -> None:
    held = [client.submit(answer, worker, pure=False) for worker in range(workers)]
    first, *others = client.gather(merged_on_workers(held))
    expected = merged_sums([trained(worker) for worker in range(workers)])
    assert first.sums.keys() == expected.keys()
    for key, total in expected.items():
        assert torch.equal(first.sums[key].mean(torch.float32), total.mean(torch.float32))
    assert [result.sums for result in others] == [{}] * (workers - 1)
    assert [result.sent for result in (first, *others)] == [[worker] for worker in range(workers)]
    assert [result.failures[0][0] for result in (first, *others)] == list(range(10, 10 + workers))


def test_no_worker_changes_the_results_that_it_holds(client: Client) -> None:
    """The cluster may merge them a second time, when the worker that did so is lost."""
    held = [client.submit(answer, worker, pure=False) for worker in range(2)]
    client.gather(merged_on_workers(held))
    for worker, state in enumerate(client.gather(held)):
        for key, total in trained(worker).sums.items():
            assert torch.equal(state.result().sums[key].high, total.high)


def test_other_results_arrive_as_they_are(client: Client) -> None:
    held = [client.submit(Completed, data=["row", i], pure=False) for i in range(3)]
    assert client.gather(merged_on_workers(held)) == [["row", 0], ["row", 1], ["row", 2]]


def test_the_error_of_a_shard_keeps_its_words(client: Client) -> None:
    failed = Failed(data=FedflowError("this machine lacks the data"))
    held = [client.submit(answer, 0, pure=False), client.scatter(failed)]
    for result in merged_on_workers(held):
        with pytest.raises(FedflowError, match=r"^this machine lacks the data$"):
            result.result()
