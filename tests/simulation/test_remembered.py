"""Scores are remembered: models that have not changed are not scored again, and no number differs for it."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from profiles import abilities
from support import (
    Ran,
    Workers,
    failing,
    follow,
    prepare_run,
    reports,
    run,
    suited,
    with_cohorts,
    with_newcomers,
)

from fedflow.local.client import Client
from fedflow.methods import Method, build_method
from fedflow.methods.personal.ditto import Ditto
from fedflow.simulation import evaluation
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job
from fedflow.simulation.remembered import Remembered, RememberedScores, model_key

SGD = {"epochs": 1, "batch_size": 8, "lr": 0.1, "momentum": 0.5}
QUARTER: dict[str, Any] = {"training": SGD, "participation": 0.25, "rounds": 4, "evaluate_every": 1}
EVERY = list(range(8))
IN_TURN = [EVERY, [2], [0, 5], [5]]  # cohorts, after the first of which every client has its own model
# Clients have models that are served as they are, or the last evaluation scores the models of the one before.
UNCHANGED = ("ditto", "local", "mtl", "pfedme", "subfedavg_un", "fedavg", "ifca", "pacfl", "cfl", "heterofl")
CHANGING = ("apfl", "fedper", "lg_fedavg", "superfed", "perfedavg", "l2gd", "fedac")  # from round to round


class Processes(Workers):
    """Workers that share no memory with the run."""

    def map(self, work: Callable, job: Job, shards: Sequence[Any], title: str) -> list[Any]:
        sent = pickle.loads(pickle.dumps(shards))  # noqa: S301
        found = pickle.dumps(super().map(work, job, sent, title))
        return list(pickle.loads(found))  # noqa: S301


@contextmanager
def scored() -> Iterator[list[list[int]]]:
    """The clients that are really scored, by shard."""
    found: list[list[int]] = []
    score = evaluation.score

    def spy(*args: Any, **named: Any) -> Any:
        if len(args) > 4:  # neither the choice of a model nor a further measure
            found.append(list(args[3]))
        return score(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "score", spy)
        yield found


@contextmanager
def forgetful() -> Iterator[None]:
    """Every client is scored in every evaluation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RememberedScores, "of", lambda self, clients: None)
        yield


def facts(ran: Ran) -> list[Any]:
    """What the run recorded, with the bytes of every score."""
    outcome = ran.outcome()
    tables = [each for each in (outcome.scores, outcome.newcomers) if each is not None]
    arrays = [
        {name: own.tobytes() for name, own in (vars(each) | each.more).items() if isinstance(own, np.ndarray)}
        for each in tables
    ]
    models = {name: w.numpy().tobytes() for name, w in outcome.models.items()}
    return [reports(ran), outcome.metrics.items(), arrays, models]


def same_facts(one: list[Any], other: list[Any]) -> bool:
    return repr(one) == repr(other)  # NaN included


@pytest.mark.by_profile(kind=abilities)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", [*UNCHANGED, *CHANGING])
@pytest.mark.filterwarnings("ignore")  # of runs that are short
def test_no_number_differs_from_that_of_scoring_every_client(
    name: str, workers: int, federation: Federation
) -> None:
    federation = with_newcomers(suited(name, federation), 2)
    settings = QUARTER | {"fine_tune": True, "sweep": True, "adapt": [{"name": "maml", "steps": 1}]}
    if workers == 3:
        settings |= {"evaluate_clients": 5}

    def ran() -> list[Any]:
        return facts(run(name, federation, executor=Processes(workers), **settings))

    with scored() as some:
        remembered = ran()
    with forgetful(), scored() as every:
        assert same_facts(remembered, ran())
    fewer = sum(map(len, some)) < sum(map(len, every))
    assert fewer or name in CHANGING


@pytest.mark.parametrize("stop", [1, 2, 3])
@pytest.mark.parametrize("name", ["ditto", "ifca"])
def test_a_resumed_run_scores_what_the_whole_run_would(
    name: str, stop: int, federation: Federation, tmp_path: Path
) -> None:
    """It is ended before its first evaluation, after it and after the round that follows."""
    settings = QUARTER | {"evaluate_every": 2, "checkpoint_every": 1}

    def in_turn(begin: int = 0) -> Method:
        return with_cohorts(build_method(name), IN_TURN[begin:])

    with scored() as whole:
        straight = facts(run(in_turn(), federation, **settings))
    rounds = prepare_run(in_turn(), federation, checkpoints=tmp_path, **settings).rounds()
    for _ in range(stop):
        next(rounds)
    with scored() as rest:
        assert same_facts(facts(run(in_turn(stop), federation, checkpoints=tmp_path, **settings)), straight)
    assert rest == (whole if stop == 1 else whole[1:])
    of_ditto = [EVERY, [0, 5], EVERY]  # rounds 2 and 4, and the end, on the complete test set too
    assert whole == (of_ditto if name == "ditto" else [EVERY, EVERY, []])


def by_round(method: Any, federation: Federation, **settings: Any) -> list[list[int]]:
    """The clients that are scored after each of four rounds."""
    simulation = prepare_run(with_cohorts(method, IN_TURN), federation, **QUARTER | settings)
    with scored() as found:
        follow(simulation)
    return found


def test_only_clients_with_another_model_are_scored_again(federation: Federation) -> None:
    assert by_round(build_method("ditto"), federation) == IN_TURN
    sampled = by_round(build_method("ditto"), federation, evaluate_clients=4)
    assert sampled == [[k for k in cohort if k in sampled[0]] for cohort in IN_TURN] and len(sampled[0]) == 4


def test_clients_that_failed_are_not_scored_again(federation: Federation) -> None:
    with pytest.warns(UserWarning, match="round 3: every client failed"):
        assert by_round(failing("ditto", 3), federation) == [EVERY, [2], [], [5]]
    with pytest.warns(UserWarning, match="round 3: every client failed"):
        assert by_round(failing("fedavg", 3), federation) == [EVERY, EVERY, [], EVERY]


def test_a_model_that_the_server_changes_is_scored_again(federation: Federation) -> None:
    """The head is the client's, the body the server's, which stays in round 3."""
    with pytest.warns(UserWarning, match="round 3: every client failed"):
        assert by_round(failing("fedper", 3), federation) == [EVERY, EVERY, [], EVERY]


def test_a_model_that_depends_on_the_round_is_scored_again(federation: Federation) -> None:
    """Its messages and kept vectors are those of the evaluation before."""

    class Scaled(Ditto):
        def model_for(self, client: Client) -> torch.Tensor:
            return super().model_for(client) * client.lr

    assert by_round(Scaled(), federation) == IN_TURN
    assert by_round(Scaled(), federation, training=SGD | {"lr_decay": 0.5}) == [EVERY] * 4


@pytest.mark.parametrize("reason", [{"cohort": "vmap"}, {"keep_predictions": True}])
def test_all_are_scored_where_the_last_bits_could_differ(
    reason: dict[str, Any], federation: Federation
) -> None:
    """FedAvg's last evaluation otherwise repeats the one before it."""
    ran = run("fedavg", federation, **QUARTER | reason)
    with scored() as found:
        ran.outcome()
        ran.outcome()
    assert found == [EVERY] * 2
    ran = run("fedavg", federation, **QUARTER)
    with scored() as found:
        ran.outcome()
    assert found == [[]]


def test_all_clients_of_a_model_are_scored_if_one_is() -> None:
    known = Remembered(np.array([5, 5, 6, 0]), np.zeros((4, 4)))
    keys, model = np.array([5, 5, 6, 7]), np.array([0, 0, 1, 2])
    assert known.changed(keys, model).tolist() == [False, False, False, True]
    assert known.changed(keys, np.array([0, 2, 1, 2])).tolist() == [False, True, False, True]


def test_a_key_changes_with_all_that_a_score_depends_on() -> None:
    w, clients = torch.zeros(4), np.array([1, 2])
    keys = [
        model_key(w, "", clients, False),
        model_key(w, "", clients, True),
        model_key(w, "small", clients, False),
        model_key(w, "", clients[:1], False),
        model_key(w, "", clients + 1, False),
        model_key(-w, "", clients, False),
        model_key(w[:2].double(), "", clients, False),
    ]
    assert len({*keys}) == len(keys) and 0 not in keys
    assert model_key(torch.zeros(4, 2)[:, 0], "", clients.tolist(), False) == keys[0]  # not contiguous
