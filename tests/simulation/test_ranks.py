"""Two processes of torch.distributed as workers: the bits of one process, and the errors of shards."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from command import make_project, one_cell, prepared_project

from fedflow.errors import FedflowError
from fedflow.experiment import Experiment
from fedflow.simulation.exact import ExactSum
from fedflow.simulation.executors import Executor
from fedflow.simulation.job import Job, Shard, Trained, merged_sums
from fedflow.simulation.loop import Simulation
from fedflow.simulation.ranks import Ranks, _order, _shared
from fedflow.simulation.run import RunSettings

OTHER = """
import sys
sys.path[:0] = {path}
import torch
import torch.distributed as dist
from fedflow.simulation.ranks import Ranks

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://{store}", rank=1, world_size=2)
Ranks().serve()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """This process is rank 0; another one, in which this module can be imported, is rank 1."""
    store = tmp_path_factory.mktemp("ranks") / "store"
    other = subprocess.Popen([sys.executable, "-c", OTHER.format(path=json.dumps(sys.path), store=store)])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=2)
    with Ranks() as made:
        yield made
    assert other.wait(timeout=60) == 0  # it was told to end
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of six clients, whose data both processes read."""
    root = make_project(tmp_path_factory.mktemp("project"))
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (90, 8, 8), np.uint8), np.arange(90) % 10
    np.savez(root / "arrays.npz", x_train=x, y_train=y, x_test=x[:30], y_test=y[:30])
    source = f"{{source: npz, path: {root / 'arrays.npz'}}}"
    cell = one_cell(source, "{name: mlp, options: {hidden: [4]}}", "scheme: iid, clients: 6")
    prepared_project(root, cell, "few")
    return root


def ran(project: Path, method: str, executor: Executor | None) -> tuple[dict, list]:
    """Server, client rows and values of every round."""
    from fedflow.config import load_params

    job = Experiment(load_params(project / "params.yaml"), "few", method, 0, project).job
    run = Simulation(job, RunSettings(rounds=3, participation=1.0), executor)
    values = [{**report.values} for report in run.rounds()]
    store = run.state.store
    rows = {f"{k} {name}": row for k in range(run.clients) for name, row in store.get(k).items()}
    return run.state.server.tensors() | rows, values


@pytest.mark.parametrize("method", ["fedavg", "ifca", "scaffold", "pacfl"])
def test_two_ranks_give_the_bits_of_one_process(ranks: Ranks, project: Path, method: str) -> None:
    here, there = (ran(project, method, executor) for executor in (None, ranks))
    assert here[1] == there[1]
    assert here[0].keys() == there[0].keys()
    assert all(torch.equal(here[0][name], there[0][name]) for name in here[0])


def trained(shard: Shard) -> Trained:
    """Sums that differ between ranks; the second rank has a group more, and lacks one."""
    rng = torch.Generator().manual_seed(shard.round)
    result = Trained([], [(shard.round, "why")])
    for group in (0, shard.round):
        total = ExactSum()
        total.add(torch.randn(7, generator=rng, dtype=torch.float64) * 10.0**shard.round, 1 / 3)
        result.sums["model", group] = total
    return result


def test_sums_that_are_reduced_have_the_same_bits(ranks: Ranks) -> None:
    """Seven columns for two ranks, and groups that one rank alone has."""
    shards = [Shard(t, [], [], [], []) for t in (1, 2)]
    first, second = ranks.map(answer, JOB, shards, "round 1")
    expected = merged_sums(trained(shard) for shard in shards)
    assert first.sums.keys() == expected.keys() == {("model", 0), ("model", 1), ("model", 2)}
    for key, total in expected.items():
        assert torch.equal(first.sums[key].high, total.high) and torch.equal(first.sums[key].low, total.low)
        assert first.sums[key].weight == total.weight
    assert second.sums == {} and [first.failures, second.failures] == [[(1, "why")], [(2, "why")]]


class Nowhere:
    device = "cpu"


JOB = Nowhere()


def answer(job: Job, shard: Shard) -> Trained:
    return trained(shard)


def vectors(job: Job, shard: Shard) -> list:
    return [vector.tolist() for vector in shard.vectors]


def fails(job: Job, shard: Shard) -> None:
    if shard.clients:
        raise FedflowError(f"shard {shard.round}")


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_shards_get_their_vectors_in_any_number_of_turns(ranks: Ranks, shards: int) -> None:
    """One vector is in all shards, another is the row of a matrix, and one each is a shard's own."""
    matrix = torch.arange(6.0).view(2, 3)
    same = torch.arange(4, dtype=torch.int64)
    own = [[torch.tensor([float(t)]), matrix[1], matrix[:, 1], same] for t in range(shards)]
    expected = [[[float(t)], [3.0, 4.0, 5.0], [1.0, 4.0], [0, 1, 2, 3]] for t in range(shards)]
    given = [Shard(t, [], each, [], []) for t, each in enumerate(own)]
    assert ranks.map(vectors, JOB, given, "round 1") == expected
    assert all(shard.vectors[3] is same for shard in given)


def test_what_several_ranks_need_is_not_in_their_orders() -> None:
    matrix, alone = torch.zeros(3, 5), torch.ones(4)
    shards = [Shard(1, [], [matrix[1], alone], [], []), Shard(1, [], [matrix[1]], [], [])]
    shared = _shared(shards)
    assert [vector.data_ptr() for vector in shared] == [matrix[1].data_ptr()]
    first, second = (_order(vectors, None, shard, shared) for shard in shards)
    assert [vector.numel() for vector in (*first.shard.vectors, *second.shard.vectors)] == [0, 4, 0]
    assert first.places == second.places == {0: 0}


@pytest.mark.parametrize("failing", [(0,), (1,), (0, 1)])
def test_an_error_of_a_shard_arrives_and_the_ranks_work_on(ranks: Ranks, failing: tuple) -> None:
    shards = [Shard(t, [1] if t in failing else [], [], [], []) for t in range(2)]
    with pytest.raises(FedflowError, match=rf"^shard {failing[0]}$"):
        ranks.map(fails, JOB, shards, "round 1")
    assert ranks.map(vectors, JOB, shards, "round 2") == [[], []]
