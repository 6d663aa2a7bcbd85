"""Simulated time: how long clients take, in which order they finish, and the server's state then."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import Ran, near, prepare_run, quadratics, run

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Cohort, Diagnostics, GlobalModel, Round
from fedflow.methods.protocols import Asynchronous
from fedflow.simulation.timing import Timing, Work, first_done

GIVEN = [[1, 2, 2], [1, 4, 3], [2, 10, 4]]  # download, epoch, upload of three clients
THREE = quadratics(((1, 0), (1, 4), (1, 8)), (10, 10, 10), start=0)


# How fast clients are


def test_every_client_has_a_class_and_keeps_its_speed() -> None:
    timing = Timing.parse({"down": [1, 2], "up": [0, 0.5]})
    times = np.array([timing.times(0, k, 1) for k in range(300)])
    shares = [((low <= times[:, 1]) & (times[:, 1] <= high)).mean() for low, high in timing.speeds]
    assert sum(shares) == 1 and min(shares) > 0.25
    assert ((times[:, 0] >= 1) & (times[:, 0] <= 2) & (times[:, 2] <= 0.5)).all()
    assert np.array_equal(timing.times(0, 7, 1, round=3), times[7])
    assert not np.array_equal(timing.times(1, 7, 1), times[7])


def test_an_unsteady_client_draws_new_speeds_within_its_class() -> None:
    timing = Timing.parse({"steady": False, "speeds": [[1, 2], [50, 80]]})
    drawn = np.array([[timing.times(0, k, 1, t)[1] for t in range(20)] for k in range(20)])
    assert (drawn.std(1) > 0).all()
    fast = drawn.max(1) <= 2
    assert 0 < fast.sum() < 20 and (drawn[~fast] >= 50).all()


@pytest.mark.parametrize(("work", "factor"), [("step", 7), ("epoch", 1)])
def test_the_time_of_an_epoch_grows_with_its_steps(work: str, factor: int) -> None:
    timing = Timing.parse({"work": work, "speeds": [[3, 3]], "up": [5, 5]})
    assert timing.times(0, 0, 7).tolist() == [0, 3 * factor, 5]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"speeds": []}, "speeds"),
        ({"speeds": [[2, 1]]}, r"speeds\[0\]"),
        ({"speeds": [[1, 2], [1]]}, r"speeds\[1\]"),
        ({"down": [1]}, "down"),
        ({"up": [-1, 1]}, r"up\[0\]"),
        ({"given": [[1, 2, 3], [1, 2]]}, r"given\[1\]"),
    ],
)
def test_bad_times_are_named(values: dict, field: str) -> None:
    with pytest.raises(BadInput, match=rf"^run\.timing\.{field}: "):
        Timing.parse(values)


def test_given_times_are_of_all_clients() -> None:
    with pytest.raises(BadInput, match=r"^run\.timing\.given: .*expected a list of 3 items"):
        prepare_run("fedavg", THREE, timing={"given": GIVEN[:2]})


# A server that waits for all


@pytest.mark.parametrize(
    ("epochs", "makespan", "idle"),
    [(1, 16, [11, 8, 0]), (2, 26, [19, 14, 0]), (4, 46, [35, 26, 0]), (5, 56, [43, 32, 0])],
)
def test_a_round_lasts_until_the_slowest_is_done(epochs: int, makespan: int, idle: list[int]) -> None:
    ran = run("fedavg", THREE, training={"epochs": epochs}, timing={"given": GIVEN}, rounds=2)
    assert ran.values("clock") == near([makespan, 2 * makespan])
    assert ran.values("idle") == near([np.mean(idle)] * 2)
    assert ran.values("delay") == [0, 0]
    assert ran.outcome().metrics["clock"] == near(2 * makespan)


def test_a_number_of_steps_is_part_of_an_epoch() -> None:
    """Four steps on ten samples in batches of four: a whole epoch and its first batch, 14 gradients."""
    training = {"steps": 4, "epochs": 1, "batch_size": 4}
    ran = run("fedavg", THREE, training=training, timing={"given": GIVEN}, rounds=2)
    assert ran.values("clock") == near([2 + 10 * 4 / 3 + 4, 2 * (2 + 10 * 4 / 3 + 4)])
    assert ran.values("gradients") == [42, 84]


def test_cycles_of_a_round_run_one_after_the_other() -> None:
    """Clusters of one client each: 2 x 2 + 3, 2 x 4 + 4 and 2 x 10 + 6."""
    alone = {"clusters": 3, "given": [0, 1, 2]}
    ran = run("fedcluster", THREE, alone, timing={"given": GIVEN}, rounds=1)
    assert (ran.values("clock")[0], ran.values("idle")[0]) == near((7 + 12 + 26, 0))


def test_the_time_to_the_target_is_reported() -> None:
    ran = run("fedavg", THREE, timing={"given": GIVEN}, evaluate_every=1, target_accuracy=0.01)
    reached = next(r for r in ran.rounds if r.values.get("local_accuracy", 0) >= 0.01)
    assert ran.outcome().metrics["clock_to_target"] == reached.values["clock"]


# A server that takes what is done


def begin(durations: list[float], number: int) -> Any:
    return lambda k, now: Work(k, number, now + durations[k], None, {})


def test_the_first_to_finish_comes_first_and_is_replaced() -> None:
    """Two of four clients train: 0 and 2 (drawn); 2 ends at 1 and is replaced by one that ends at 4 or 6."""
    durations, rng = [3.0, 5.0, 1.0, 3.0], np.random.default_rng(1)
    drawn = np.random.default_rng(1).choice(4, size=2, replace=False).tolist()
    assert sorted(drawn) == [1, 2]
    done, busy = first_done([], 0.0, 1, 2, 4, rng, begin(durations, 1))
    assert [(w.client, w.ends) for w in done] == [(2, 1.0)]
    assert [(w.client, w.ends, w.begun) for w in busy] == [(1, 5.0, 1)]
    done, busy = first_done(busy, 1.0, 3, 2, 4, rng, begin(durations, 2))
    assert {w.client for w in done} | {w.client for w in busy} == {0, 1, 2, 3}
    assert [w.ends for w in done] == sorted(w.ends for w in done)
    assert next(w for w in done + busy if w.client == 1).begun == 1
    assert all(w.begun == 2 for w in done + busy if w.client != 1)
    assert len(busy) == 1


def test_no_client_trains_twice_for_one_server_step() -> None:
    durations = [1.0, 100.0, 100.0]
    done, busy = first_done([], 0.0, 3, 3, 3, np.random.default_rng(0), begin(durations, 1))
    assert [w.client for w in done] == [0, 1, 2] and not busy


class Hasty(Asynchronous, FedAvg):
    """FedAvg whose server adds the updates of the first clients that are done."""

    def clients_in_flight(self, size: int) -> int:
        return 3

    def local(self, client: Client) -> Update:
        x = client.received["model"]
        return client.update(d=client.fit(start=x) - x, weight=1.0)

    def aggregate(self, now: Round, server: GlobalModel, cohort: Cohort) -> tuple[GlobalModel, Diagnostics]:
        return GlobalModel(server.model + cohort.mean("d")), {}


HASTY: dict[str, Any] = {"training": {"epochs": 1, "lr": 0.5}, "participation": 0.34, "rounds": 5}


def hasty(times: list[list[int]], **kwargs: Any) -> Ran:
    return run(Hasty.parse({}), THREE, timing={"given": times}, **HASTY | kwargs)


def test_stale_updates_are_of_the_model_that_was_received(cohort: str) -> None:
    """Clients need 2, 3 and 7; x is 0. Each moves half of the way from the received model to 0, 4 or 8.

    At 2 client 0 sends 0; at 3 client 1 sends 2, of which client 0 is unaware when it sends 0 again at 4.
    At 6 both are done, client 0 first: it received x = 2 and sends -1; client 1 received 2 and sends 1.
    """
    ran = hasty([[0, 2, 0], [0, 3, 0], [0, 7, 0]], cohort=cohort)
    assert [r.cohort for r in ran.rounds] == [[0], [1], [0], [0], [1]]
    assert ran.values("clock") == near([2, 3, 4, 6, 6])
    assert ran.values("delay") == [0, 1, 1, 0, 2]
    assert ran.server("model") == near([0, 2, 2, 1, 2])
    assert ran.values("idle") == [0] * 5


def test_an_asynchronous_run_resumes_with_the_same_work(tmp_path: Path) -> None:
    times = [[0, 2, 0], [0, 3, 0], [0, 7, 0]]
    settings = {"timing": {"given": times}, "checkpoints": tmp_path, "checkpoint_every": 3} | HASTY
    rounds = prepare_run(Hasty.parse({}), THREE, **settings).rounds()
    for _ in range(4):
        next(rounds)
    again = hasty(times, checkpoints=tmp_path, checkpoint_every=3)
    assert [r.replayed for r in again.rounds] == [True] * 3 + [False] * 2
    straight = hasty(times)
    assert again.server("model")[-1] == straight.server("model")[-1]
    assert [r.cohort for r in again.rounds] == [r.cohort for r in straight.rounds]
    assert all(again.values(name) == straight.values(name) for name in ("clock", "delay"))


def test_equal_clients_in_full_concurrency_are_a_cohort() -> None:
    """No update is stale: the model moves half of the way to the mean 4 in every round."""
    ran = hasty([[1, 2, 1]] * 3, participation=1.0, rounds=3)
    assert [r.cohort for r in ran.rounds] == [[0, 1, 2]] * 3
    assert ran.values("clock") == near([4, 8, 12])
    assert ran.values("delay") == [0] * 3
    assert ran.server("model") == near([2, 3, 3.5])
