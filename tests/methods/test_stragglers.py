"""Stragglers: how they are drawn, how many epochs they train, and how they are dropped."""

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
from support import Ran, alike, prepare_run, quadratics, run, same

from fedflow.errors import BadInput
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS
from fedflow.methods.protocols import Asynchronous
from fedflow.simulation.federation import Federation

LATE: dict[str, Any] = {"epochs": 5, "lr": 0.1, "stragglers": 0.5}
TEN = quadratics([(1, k) for k in range(10)], [4] * 10)


def epochs_of(ran: Ran) -> list[list[int]]:
    """Epochs of every client in every round of Local, as (w - k) shrinks by 0.9 in each."""
    left = [[0.5 - k for k in range(10)]]
    left += [[w - k for k, w in enumerate(models)] for models in ran.kept("model")]
    return [
        [round(float(np.log(after / before) / np.log(0.9))) for before, after in zip(*two)]
        for two in itertools.pairwise(left)
    ]


def test_a_share_of_every_cohort_trains_fewer_epochs(cohort: str) -> None:
    late = LATE | {"stragglers": 0.49, "least_epochs": 2}
    rounds = epochs_of(run("local", TEN, training=late, rounds=20, cohort=cohort))
    for epochs in rounds:
        assert sum(count < 5 for count in epochs) <= 4  # 49 % of ten, rounded down; 5 may be drawn too
    assert {count for epochs in rounds for count in epochs} == {2, 3, 4, 5}
    assert len({tuple(count < 5 for count in epochs) for epochs in rounds}) > 10


def test_random_epochs_for_all_are_uniform() -> None:
    """FedNova's experiments: E_k from 2 to 5 for all clients."""
    training = LocalTraining.parse(LATE | {"stragglers": 1, "least_epochs": 2})
    late = training.draw_stragglers(np.arange(4000), np.random.default_rng(0))
    counts = np.bincount(list(late.values()), minlength=6)
    assert len(late) == 4000 and counts[:2].sum() == 0
    assert np.abs(counts[2:] - 1000).max() < 4 * np.sqrt(750)


def test_fednova_counts_the_steps_of_stragglers(cohort: str) -> None:
    """T1 with tau drawn: w - tau_eff sum p_k (w - w_k) / tau_k."""
    training = LATE | {"stragglers": 1, "least_epochs": 1}
    more: dict[str, Any] = {
        "training": training,
        "rounds": 1,
        "keep_trained": True,
        "cohort": cohort,
        "seed": 3,
    }
    p, a, b = np.array([0.25, 0.75]), np.array([1, 2]), np.array([1, -1])
    held = np.array(run("fednova", quadratics(), **more).kept("trained")[0])
    tau = np.round(np.log((held - b) / (0.5 - b)) / np.log(1 - 0.1 * a))
    assert tau[0] != tau[1]
    nova = run("fednova", quadratics(), **more).server("model")
    assert nova == pytest.approx([0.5 - (p @ tau) * (p @ ((0.5 - held) / tau))], abs=1e-9)
    assert run("fedprox", quadratics(), {"mu": 0}, **more).server("model") == pytest.approx(
        [p @ held], abs=1e-9
    )


def test_dropped_stragglers_take_no_part() -> None:
    dropped, kept = (
        run("fedavg", TEN, training=LATE | {"drop_stragglers": drop}, rounds=4, participation=0.8)
        for drop in (True, False)
    )
    for ours, all_of_them in zip(dropped.rounds, kept.rounds):
        assert len(ours.cohort) == 4 and set(ours.cohort) < set(all_of_them.cohort)
    assert dropped.values("bytes_up")[-1] * 2 == kept.values("bytes_up")[-1]
    assert dropped.simulation.state.participations.sum() == 16


def test_stragglers_are_the_same_for_all_methods_and_workers(federation: Federation) -> None:
    late = {"training": LATE | {"batch_size": 8, "drop_stragglers": True}, "participation": 0.5}
    cohorts = [[r.cohort for r in run(name, federation, **late).rounds] for name in ("fedavg", "scaffold")]
    assert cohorts[0] == cohorts[1]


def test_streams_that_are_short_already_do_not_change(federation: Federation, cohort: str) -> None:
    """FedRep's single epoch of the body: no result changes if the head trains all its epochs."""
    more: dict[str, Any] = {"participation": 0.5, "cohort": cohort}
    training = {"epochs": 5, "batch_size": 8}
    hyper = {"head_epochs": 1}
    late = run("fedrep", federation, hyper, training=training | {"stragglers": 1}, **more)
    assert same(late.state(), run("fedrep", federation, hyper, training=training, **more).state())


@pytest.mark.parametrize("name", ["fedprox", "fednova", "ditto", "scaffold", "pfedme"])
def test_loop_equals_vmap_and_a_run_resumes(
    name: str, federation: Federation, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = LATE | {"batch_size": 8}
    start = partial(prepare_run, name, federation, training=training, participation=0.5)
    alike(start, tmp_path, monkeypatch, every=1, tolerance=1e-5)


@pytest.mark.parametrize(
    ("late", "field"),
    [
        ({"stragglers": 1, "drop_stragglers": True}, "stragglers"),
        ({"stragglers": 0.5, "least_epochs": 5}, "least_epochs"),
        ({"stragglers": 1.5}, "stragglers"),
        ({"drop_stragglers": True}, "drop_stragglers"),
        ({"least_epochs": 2}, "least_epochs"),
    ],
)
def test_impossible_stragglers_are_refused(late: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput, match=rf"^training.{field}: "):
        LocalTraining.parse({"epochs": 5} | late)


@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if issubclass(method, Asynchronous)]
)
def test_asynchronous_methods_have_no_stragglers(name: str, federation: Federation) -> None:
    with pytest.raises(BadInput, match=r"^training.stragglers: .* which is asynchronous"):
        run(name, federation, training=LATE)


def test_methods_that_train_on_full_gradients_have_no_stragglers(federation: Federation) -> None:
    with pytest.raises(
        BadInput, match=r"^training.stragglers: .* trains on full gradients, or drop_stragglers"
    ):
        run("fedsgd", federation, training={"stragglers": 0.5})
    run("fedsgd", federation, training={"stragglers": 0.5, "drop_stragglers": True}, rounds=1)
