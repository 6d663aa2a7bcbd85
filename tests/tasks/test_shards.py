"""Tasks as plain functions, and the executor with a runner that can be broken at will."""

from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace

import pytest

from fedflow.errors import FedflowError
from tasks import shards

JOB = SimpleNamespace(federation=SimpleNamespace(device="cpu"))
SHARDS = [SimpleNamespace(clients=[0, 1]), SimpleNamespace(clients=[2])]


def sizes(job, shard) -> int:
    return len(shard.clients)


class Runner:
    """Runs a task's function at once; the first ``losses`` submissions find the pool broken."""

    losses = 0
    started = 0
    titles: tuple = ()

    def __enter__(self):
        type(self).started += 1
        return self

    def __exit__(self, *error): ...

    def submit(self, task, parameters):
        future: Future = Future()
        type(self).titles += (task.task_run_name.format(**parameters),)
        if type(self).losses:
            type(self).losses -= 1
            future.set_exception(BrokenProcessPool())
        else:
            future.set_result(task.fn(**parameters))
        return future


@pytest.fixture
def runner(monkeypatch):
    made = type("OneRunner", (Runner,), {})
    monkeypatch.setattr(shards.PrefectExecutor, "_new_runner", lambda self: made())
    monkeypatch.setattr(shards.torch.cuda, "is_available", lambda: False)
    return made


def test_a_shard_is_its_work():
    assert shards.run_shard.fn(sizes, JOB, SHARDS[0], "round 1 · train", 1, 2) == 2


def test_results_come_in_the_order_of_the_shards(runner):
    with shards.PrefectExecutor() as executor:
        assert executor.map(sizes, JOB, SHARDS, "round 1 · train") == [2, 1]
    assert runner.titles == (
        "round 1 · train · worker 1 · 2 clients",
        "round 1 · train · worker 2 · 1 clients",
    )


def test_only_the_lost_shards_of_a_broken_pool_run_again(runner):
    runner.losses = 1
    with shards.PrefectExecutor() as executor:
        assert executor.map(sizes, JOB, SHARDS, "round 1 · train") == [2, 1]
    assert (runner.started, len(runner.titles)) == (2, 3)


def test_workers_that_always_die_end_the_run_with_one_line(runner):
    runner.losses = 100
    with (
        shards.PrefectExecutor() as executor,
        pytest.raises(FedflowError, match="workers died 4 times") as error,
    ):
        executor.map(sizes, JOB, SHARDS, "round 1 · train")
    assert "\n" not in str(error.value)
    assert runner.started == 1 + 1 + shards.LOST_WORKERS
