"""Properties of every registered method; a new method is covered as soon as it is registered.

The engine's promises are tested with one method of every profile (`profiles`); `make test-full` tests all.
"""

import contextlib
import copy
import dataclasses
import inspect
import itertools
import math
import re
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from profiles import abilities
from support import (
    DENSE,
    Normed,
    Ran,
    Workers,
    failing,
    follow,
    forbid_fallback,
    images,
    prepare_run,
    refused,
    reports,
    run,
    run_without_values,
    same,
    suited,
    with_cohorts,
    with_newcomers,
)
from torch import Tensor

from fedflow.config import Params, load_params
from fedflow.data import Dataset, Examples
from fedflow.errors import BadInput, FedflowError
from fedflow.local import measures
from fedflow.local.client import Client, Update
from fedflow.local.fast.pieces import Pieces
from fedflow.local.local_training import LocalTraining
from fedflow.local.samples import Samples
from fedflow.methods import METHODS, Method, build_method
from fedflow.methods.generative._generative import ImageMethod
from fedflow.methods.generative._networks import NetworkMethod
from fedflow.methods.method import Ability, Conditions, ServerState, contract
from fedflow.methods.protocols import (
    SAMPLERS,
    Adapting,
    Asynchronous,
    Cyclic,
    Generative,
    Leveled,
    Noisy,
    Onboarding,
    Serving,
    samplers,
)
from fedflow.models.flat import FlatModel
from fedflow.simulation import worker
from fedflow.simulation.clients import ClientStore
from fedflow.simulation.evaluation import Scores, evaluate_shard
from fedflow.simulation.extensions.generation import Generation
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import OnboardingShard
from fedflow.simulation.levels import level, network
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import RoundReport
from fedflow.simulation.timing import Work

pytestmark = pytest.mark.parametrize("name", METHODS)
engine = pytest.mark.by_profile  # a promise of the engine, not of the method
common = pytest.mark.by_profile(kind=abilities)  # one that hardly depends on it
ways = pytest.mark.parametrize(
    "cohort", ["vmap", pytest.param("loop", marks=pytest.mark.full)], indirect=True
)

SGD = {"epochs": 1, "batch_size": 8, "lr": 0.1, "momentum": 0.5}
ROOT = Path(__file__).parents[2]
HALF: dict[str, Any] = {"training": SGD, "participation": 0.5, "rounds": 2}
QUICK: dict[str, dict[str, Any]] = {"flt": {"encoder": "pixels"}}  # without an encoder to train
SIZES = (1, 5, 9, 12, 17, 13, 7, 24)  # of the clients: with one batch, several, and batches that are not full
LARGEST = SIZES.index(max(SIZES))


@pytest.fixture(scope="module")
def clients(digits: Dataset) -> Federation:
    return images(digits, SIZES)


@pytest.fixture
def federation(name: str, clients: Federation) -> Federation:
    return suited(name, clients)


def trains_alone(name: str) -> bool:
    return Noisy.of(METHODS[name]()).alone


def spoiled(federation: Federation, client: int) -> Federation:
    """The same federation, but the inputs of one client are NaN."""
    x = federation.train.x.clone()
    x[torch.as_tensor(federation.partition.train(client))] = torch.nan
    return dataclasses.replace(federation, train=Examples(x, federation.train.y))


def run_spoiled(method: Method, federation: Federation, client: int, **settings: Any) -> Ran:
    """A run in which the inputs of one client become NaN after the onboarding."""
    simulation = prepare_run(method, federation, **settings)
    simulation.state.onboarded = simulation.onboard(range(simulation.clients))
    simulation.job = dataclasses.replace(simulation.job, federation=spoiled(federation, client))
    return follow(simulation)


# The engine's promises


@pytest.fixture(scope="module")
def ran_vmapped() -> dict[str, tuple[dict[str, Tensor], list[RoundReport]]]:
    return {}


@pytest.fixture
def vmapped(
    name: str, federation: Federation, ran_vmapped: dict, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Tensor], list[RoundReport]]:
    """State and rounds of a vmapped run, which several tests compare."""
    if name not in ran_vmapped:
        with monkeypatch.context() as patch:
            forbid_fallback(patch)
            ran = run(name, federation, cohort="vmap", **HALF)
        ran_vmapped[name] = ran.state(), ran.rounds
    return ran_vmapped[name]


def test_loop_agrees_with_vmap(name: str, federation: Federation, vmapped: tuple) -> None:
    """Padding and batched products change the order of float32 sums: 1e-5 on weights below 1."""
    loop = run(name, federation, cohort="loop", **HALF)
    torch.testing.assert_close(vmapped[0], loop.state(), rtol=0, atol=1e-5)


@engine
def test_local_steps_never_look_at_values(
    name: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second round, whose rate is a tensor; with a curriculum, if accepted."""
    if trains_alone(name):
        pytest.skip("its clients train one by one")
    training: dict[str, Any] = SGD | {"lr_decay": 0.5}
    method = METHODS[name]()
    if method.streams(LocalTraining()) and Adapting.of(method).trains(LocalTraining()).adaptation is None:
        training["curriculum"] = {"score": "both"}
    run_without_values(name, federation, monkeypatch, **HALF | {"training": training})


@engine
def test_workers_do_not_change_a_bit(name: str, federation: Federation) -> None:
    """Of three, one trains two of the four clients of a round."""
    alone, shared = (
        run(name, federation, executor=Workers(n), fine_tune=True, evaluate_every=1, **HALF) for n in (1, 3)
    )
    assert same(alone.state(), shared.state())
    assert reports(alone) == reports(shared)
    assert alone.outcome().metrics == shared.outcome().metrics


@engine
@pytest.mark.parametrize("stop", [3, *(pytest.param(stop, marks=pytest.mark.full) for stop in (1, 4))])
def test_a_run_killed_anywhere_resumes_to_the_same_end(
    name: str, federation: Federation, stop: int, tmp_path: Path
) -> None:
    often = {"checkpoint_every": 2, "evaluate_every": 2}
    settings = HALF | often | {"rounds": stop + 1, "keep_trained": True}
    straight = run(name, federation, checkpoints=tmp_path / "straight", **settings)
    rounds = prepare_run(name, federation, checkpoints=tmp_path / "killed", **settings).rounds()
    for _ in range(stop):
        next(rounds)
    again = run(name, federation, checkpoints=tmp_path / "killed", **settings)
    assert [r.replayed for r in again.rounds] == [n < stop // 2 * 2 for n in range(stop + 1)]
    assert same(again.state(), straight.state())
    assert reports(again) == reports(straight)
    one, other = again.outcome(), straight.outcome()
    assert one.metrics == other.metrics
    assert np.array_equal(one.participations, other.participations)
    assert same(renamed(one.models), renamed(other.models))


WRITE = ClientStore._write


def renamed(models: dict[int, Tensor]) -> dict[str, Tensor]:
    return {str(number): w for number, w in models.items()}


@common
def test_a_run_killed_while_client_rows_are_written_resumes(
    name: str, federation: Federation, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = HALF | {"rounds": 3, "checkpoint_every": 1, "keep_trained": True}
    straight = run(name, federation, checkpoints=tmp_path / "straight", **settings)
    rounds = prepare_run(name, federation, checkpoints=tmp_path / "killed", **settings).rounds()
    next(rounds)
    with monkeypatch.context() as patch:
        patch.setattr(ClientStore, "_write", power_cut)
        with contextlib.suppress(KeyboardInterrupt):
            next(rounds)
    again = run(name, federation, checkpoints=tmp_path / "killed", **settings)
    assert next(r.replayed for r in again.rounds) and not again.rounds[-1].replayed
    assert same(again.state(), straight.state())


def power_cut(
    store: ClientStore, name: str, client: int, value: Tensor, write: Any = ClientStore._write
) -> None:
    """A row reaches its file, garbled, and the process ends."""
    write(store, name, client, value + 99)
    raise KeyboardInterrupt


@common
def test_scores_of_a_round_do_not_depend_on_the_rounds_to_come(
    name: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a learning rate that decays; compares losses, because accuracies are too coarse."""

    def losses(count: int) -> list[list[float]]:
        found: list[list[float]] = []

        def spy(job: Any, shard: Any) -> Scores:
            scores = evaluate_shard(job, shard)
            found.append(scores.local_loss.tolist())
            return scores

        monkeypatch.setattr("fedflow.simulation.scoring.evaluate_shard", spy)
        training = SGD | {"lr_decay": 0.5}
        settings = HALF | {"rounds": count, "training": training, "evaluate_every": 1}
        simulation = prepare_run(name, federation, **settings)
        simulation.job = dataclasses.replace(simulation.job, rounds=9)  # the method may depend on T
        assert len(list(simulation.rounds())) == len(found)
        return found

    now = Simulation.round
    monkeypatch.setattr(
        Simulation, "round", lambda *key, **cycle: dataclasses.replace(now(*key, **cycle), rounds=9)
    )

    short, long = losses(2), losses(4)
    assert long[:2] == short


# Local training


@common
def test_the_learning_rate_makes_a_difference(name: str, federation: Federation) -> None:
    one, other = (
        run(name, federation, QUICK.get(name), **HALF | {"training": SGD | {"lr": lr}}) for lr in (0.1, 0.03)
    )
    assert not same(one.state(), other.state())


@common
@ways
def test_the_learning_rate_decays_everywhere(name: str, federation: Federation, cohort: str) -> None:
    """The second round equals that of a run whose learning rate is halved after the first."""
    halved, swapped = (
        prepare_run(
            name, federation, QUICK.get(name), cohort=cohort, **HALF | {"training": SGD | {"lr_decay": decay}}
        )
        for decay in (0.5, 1)
    )
    next(rounds := swapped.rounds())
    smaller = dataclasses.replace(swapped.job.training, lr=SGD["lr"] / 2)
    swapped.job = dataclasses.replace(swapped.job, training=smaller)
    list(rounds)
    torch.testing.assert_close(state_of(swapped), follow(halved).state(), rtol=0, atol=1e-6)


def state_of(simulation: Simulation) -> dict[str, Tensor]:
    store = simulation.state.store
    rows = [store.get(k) for k in range(simulation.clients)]
    kept = {f"clients/{name}": torch.stack([row[name] for row in rows]) for name in store.first}
    return {f"server/{name}": w for name, w in simulation.state.server.tensors().items()} | kept


def test_onboarding_has_the_learning_rate_of_the_first_round(name: str, federation: Federation) -> None:
    if not issubclass(METHODS[name], Onboarding) or not METHODS[name]().onboarding_phases():
        pytest.skip("no onboarding")
    first, decayed = (
        run(name, federation, QUICK.get(name), **HALF | {"rounds": 1, "training": SGD | {"lr_decay": decay}})
        for decay in (1, 0.5)
    )
    assert same(first.state(), decayed.state())


@common
@pytest.mark.parametrize(
    "sampling", ["sweep", *(pytest.param(s, marks=pytest.mark.full) for s in SAMPLERS[1:3])]
)
def test_cohorts_of_a_sampler_are_the_same_for_all(name: str, federation: Federation, sampling: str) -> None:
    """Or the sampler is refused."""
    sampled: dict[str, Any] = {"sampling": sampling, "participation": 0.25, "rounds": 4}
    if issubclass(METHODS[name], Asynchronous) or sampling not in samplers(METHODS[name]()):
        with refused("^run.sampling: .*, which (is asynchronous|chooses its cohorts itself)"):
            run(name, federation, **sampled)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, plain = (run(each, federation, QUICK.get(each), **sampled) for each in (name, "fedavg"))
    if not issubclass(METHODS[name], Cyclic):
        assert [r.cohort for r in ours.rounds] == [r.cohort for r in plain.rounds]
    assert sampling == "bernoulli" or all(len(r.cohort) == 2 for r in ours.rounds)


@common
def test_a_client_curriculum_is_the_same_with_any_workers(name: str, federation: Federation) -> None:
    """Or is refused; a neutral one is a sweep, bit for bit."""
    settings: dict[str, Any] = {"participation": 0.25, "rounds": 4, "training": SGD}

    def ran(sampling: str, executor: Workers | None = None, **curriculum: Any) -> Ran:
        given = settings | ({"client_curriculum": curriculum} if curriculum else {})
        return run(name, federation, QUICK.get(name), sampling=sampling, executor=executor, **given)

    if issubclass(METHODS[name], Asynchronous) or "easy_first" not in samplers(METHODS[name]()):
        with refused("^run.sampling: .*, which (is asynchronous|chooses its cohorts itself)"):
            ran("easy_first")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        swept, neutral = ran("sweep"), ran("easy_first", b=1)
        one, three = (ran("easy_first", Workers(count), b=0.5) for count in (1, 3))
    assert same(neutral.state(), swept.state()) and [r.cohort for r in neutral.rounds] == [
        r.cohort for r in swept.rounds
    ]
    assert same(one.state(), three.state()) and one.values("polls")[-1] > 1
    assert reports(one) == reports(three)


@cache
def shipped() -> dict[Path, Params]:
    return {folder: load_params(folder / "params.yaml") for folder in (ROOT, *ROOT.glob("studies/*/"))}


def test_the_runs_that_are_shipped_are_long_enough(name: str) -> None:
    for folder, params in shipped().items():
        if folder == ROOT or name in params.grid.methods:
            method, training = params.method(name)
            method.check(Conditions(params.run.rounds, training))


# Running statistics of BatchNorm (docs/decisions/0001)


@pytest.fixture(scope="module")
def normed(digits: Dataset) -> Federation:
    found = images(digits, (23, 7, 40, 20))
    chosen_by = {"selection_offsets": np.arange(5), "selection_indices": found.partition.indices[:4]}
    return dataclasses.replace(
        found,
        model=FlatModel(Normed, dtype=torch.float64),
        partition=dataclasses.replace(found.partition, **chosen_by),
    )


@common
@pytest.mark.filterwarnings("ignore:.*clients train one by one")
def test_cohorts_with_batch_norm_equal_the_loop(name: str, normed: Federation) -> None:
    """Running statistics too; clients are ragged, so that their last batches are padded."""
    if issubclass(METHODS[name], Leveled | Generative):
        pytest.skip("its networks are others")
    settings: dict[str, Any] = {"training": {"batch_size": 8, "epochs": 2, "lr": 0.05}, "rounds": 2}
    loop, vmap = (run(build_method(name), normed, cohort=cohort, **settings) for cohort in ("loop", "vmap"))
    torch.testing.assert_close(vmap.state(), loop.state(), rtol=0, atol=1e-8)


# One cluster per round, weights as they were sent, and no slow encoder.
PLAIN: dict[str, dict[str, Any]] = {
    "afl": {"lambda_lr": 0, "prior": "samples"},
    "fedcluster": {"clusters": 1},
    "fedsc": {"clusters": 1},
    **QUICK,
    "subfedavg_hy": {"channel_rate": 0},
    "term": {"t": 0},
}
MORE = {"fednova": [{"gmf": 0.5}, {"mu": 0.1}], "l2gd": [{"lam": 10}]}
ELSEWHERE = {"encoder", "reducer", "distance"}  # choices that only affect the onboarding


def variants(name: str) -> Iterator[Method]:
    """The method with its defaults, with each other choice, and with a large server learning rate."""
    hypers: list[dict[str, Any]] = [{}, *MORE.get(name, ())]
    for field in dataclasses.fields(METHODS[name]):  # type: ignore[arg-type]
        choices = () if field.name in ELSEWHERE else field.metadata["choices"]
        hypers += [{field.name: choice} for choice in choices if choice != field.default]
        hypers += [{field.name: not field.default}] if isinstance(field.default, bool) else []
        hypers += [{field.name: 3.0}] if field.name == "server_lr" else []
    for hyper in hypers:
        with contextlib.suppress(BadInput):  # choices that are valid only together with others
            method = build_method(name, PLAIN.get(name, {}) | hyper)
            training = Adapting.of(method).trains(LocalTraining(clip_norm=1e3))
            method.check(Conditions(100, training))
            yield method


OVERLAPPING = {"flis_dc", "flis_hc", "flt"}  # a client may be in several clusters


@dataclasses.dataclass
class Seen:
    """What one client sent: weight and cluster, the model that is averaged, and the model it trained."""

    weight: float
    cluster: int
    model: Tensor
    held: Tensor


def spied(method: Method) -> tuple[Method, list[Seen]]:
    """The same method, and a list that collects what its clients send."""
    all_sent: list[Seen] = []

    class Spied(type(method)):  # type: ignore[misc]
        def local(self, client: Client) -> Update:
            update = super().local(client)
            cluster, held, model = int(update.group), client.trained, update.vectors.get("model")
            if held is None:  # a gradient was sent
                model = held = client.full_step(self.whole(client, client.received["models"])[cluster])
            if model is None or len(model) < len(held):
                model = held
            all_sent.append(Seen(float(update.weight), cluster, model, held))
            return update

    return Spied(**method.as_dict()), all_sent


def averaged(
    method: Method, server: dict[str, Tensor], model: FlatModel
) -> Iterator[tuple[int | None, Tensor]]:
    """The averaged models [D] on the server, and their clusters (None: of all clients)."""
    kinds = ("model",) if "models" in server else ("model", "mean")
    yield from ((None, server[kind]) for kind in kinds if kind in server)
    if "models" in server and method.name not in OVERLAPPING:
        shared = getattr(method, "shared", "none")
        for cluster, w in enumerate(server["models"]):
            if shared == "none":
                yield cluster, w
            elif shared == "averaged":
                yield None, model.head().join(w, server["body"])


@pytest.mark.parametrize("settings", ["default", pytest.param("others", marks=pytest.mark.full)])
def test_running_statistics_are_averages_of_those_sent(name: str, normed: Federation, settings: str) -> None:
    """The weighted mean, by cluster, of what clients sent; served models are within the range of these."""
    if issubclass(METHODS[name], Leveled | Generative):
        pytest.skip("its networks have no running statistics, or are not averaged")
    model = normed.model
    first = model.init(0)[model.parameters :]
    training = {
        "batch_size": 8,
        "lr": 0.05,
        "clip_norm": 1e3,
    }  # some choices need a limit: one too high to matter
    for method in itertools.islice(variants(name), *((1,) if settings == "default" else (1, None))):
        about = str(method.as_dict())
        spy, all_sent = spied(method)
        ran = run(spy, normed, training=training, rounds=2)
        for server, sent in zip(ran.servers, (all_sent[:4], all_sent[4:])):
            for cluster, w in averaged(method, server, model):
                numbers = server.get("assignment", [s.cluster for s in sent])
                members = [s for s, number in zip(sent, numbers) if cluster in (None, int(number))]
                if members:
                    decided = server.get("weighing/p")  # by the server, for all of `members`
                    given = torch.tensor([s.weight for s in members], dtype=torch.float64)
                    weights = given if decided is None else decided
                    mean = weights @ torch.stack([s.model for s in members]) / weights.sum()
                    found, expected = w[model.parameters :], mean[model.parameters :]
                    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12, msg=about)
                    assert not torch.equal(found, first), about
        known = torch.stack([first, *(w[model.parameters :] for s in all_sent for w in (s.model, s.held))])
        for w in ran.outcome().models.values():
            buffers = w[model.parameters :]
            assert (buffers >= known.amin(0) - 1e-12).all(), about
            assert (buffers <= known.amax(0) + 1e-12).all(), about
            assert method.serves != "personal" or not torch.equal(buffers, first), about


def test_running_statistics_of_stale_updates_are_averages(name: str, normed: Federation) -> None:
    """A stale difference from the received statistics would extrapolate: variances became negative."""
    if not issubclass(METHODS[name], Asynchronous):
        pytest.skip("no update is stale")
    method, all_sent = spied(METHODS[name]())
    training = {"batch_size": 8, "lr": 0.05}
    timing = {"given": [[0, 1, 0], [0, 1, 0], [0, 3, 0], [0, 5, 0]]}
    ran = run(method, normed, training=training, participation=0.5, rounds=5, timing=timing)
    assert max(ran.values("delay")) > 0
    sent = torch.stack([seen.held for seen in all_sent])[:, normed.model.parameters :]
    for server in ran.servers:
        buffers = server["model"][normed.model.parameters :]
        assert (sent.amin(0) - 1e-12 <= buffers).all() and (buffers <= sent.amax(0) + 1e-12).all()


def hooks_of(method: Method) -> list[str]:
    """The hooks of a method that are given a round, or the server's state."""
    kinds = [Method, *(kind for kind in Ability.__subclasses__() if isinstance(method, kind))]
    found = [(name, vars(kind)[name]) for kind in kinds for name in contract(kind)]
    hooks = [(name, hook) for name, hook in found if inspect.isfunction(hook)]
    return [name for name, hook in hooks if {"now", "server"} & {*inspect.signature(hook).parameters}]


def test_hooks_change_nothing_in_place(name: str, federation: Federation) -> None:
    """Neither the server's state nor any array that a hook is given."""
    frozen: dict[str, Any] = {}

    def watched(hook: str) -> Callable[..., Any]:
        def call(self: Method, *given: Any) -> Any:
            known = [value.tensors() if isinstance(value, ServerState) else value for value in given]
            before = copy.deepcopy([v for v in known if isinstance(v, dict | np.ndarray)])
            result = getattr(super(Watched, self), hook)(*given)
            after = [value.tensors() if isinstance(value, ServerState) else value for value in given]
            for old, new in zip(before, [v for v in after if isinstance(v, dict | np.ndarray)]):
                assert same(old, new) if isinstance(old, dict) else np.array_equal(old, new), hook
            frozen[hook] = True
            return result

        return call

    method = build_method(name, QUICK.get(name))
    overridden = {hook: watched(hook) for hook in hooks_of(method)}
    Watched = type("Watched", (type(method),), overridden)
    run(Watched(**method.as_dict()), with_newcomers(federation, 1), evaluate_every=1, **HALF).outcome()
    served = "images" if isinstance(method, Generative) else "broadcast"
    served = "broadcast_for_evaluation" if isinstance(method, Serving) else served
    assert {served, "aggregate"} <= frozen.keys()


# Clients that fail


@common
def test_a_client_that_returns_nan_is_left_out(name: str, federation: Federation) -> None:
    cohorts = [[0, 2, 3, 5], [1, 3, 4, 6]]
    without = [[k for k in round if k != 3] for round in cohorts]
    ran, spared = (
        run_spoiled(with_cohorts(build_method(name), plan), federation, 3, **HALF)
        for plan in (cohorts, without)
    )
    assert [r.failed for r in ran.rounds] == [{3: "its update holds NaN or infinite values"}] * 2
    assert ran.simulation.state.participations.tolist() == [1, 1, 1, 0, 1, 1, 1, 0]
    assert same(ran.state(), spared.state())
    assert ran.values("bytes_up") == spared.values("bytes_up")
    assert ran.outcome().metrics["failed_clients"] == 2


@common
def test_a_vmapped_client_that_returns_nan_does_not_spoil_the_others(
    name: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the client that failed is retried alone."""
    retried, train_one = [], worker._train_one

    def spy(job: Any, federation: Any, shard: Any, i: int, *rest: Any) -> Any:
        if not isinstance(shard, OnboardingShard):
            retried.append(shard.clients[i])
        return train_one(job, federation, shard, i, *rest)

    monkeypatch.setattr(worker, "_train_one", spy)
    loop, vmapped = (
        run_spoiled(
            with_cohorts(build_method(name), [[0, 2, 3, 5]]),
            federation,
            3,
            cohort=cohort,
            **HALF | {"rounds": 1},
        )
        for cohort in ("loop", "vmap")
    )
    assert retried == [0, 2, 3, 5, *([0, 2, 3, 5] if trains_alone(name) else [3])]
    assert vmapped.rounds[0].failed.keys() == {3}
    torch.testing.assert_close(vmapped.state(), loop.state(), rtol=0, atol=1e-5)


@common
@pytest.mark.filterwarnings("ignore:.*clients train one by one")
@pytest.mark.parametrize("cohort", ["vmap", pytest.param("loop", marks=pytest.mark.full)])
def test_a_client_whose_training_raises_is_left_out(name: str, federation: Federation, cohort: str) -> None:
    method = breaking(name, with_samples=SIZES[3])
    ran = run(with_cohorts(method, [[0, 2, 3, 5]]), federation, cohort=cohort, **HALF | {"rounds": 1})
    assert [*ran.rounds[0].failed] == [3] and ran.rounds[0].failed[3].startswith("ValueError: out of order")
    spared = run(with_cohorts(build_method(name), [[0, 2, 5]]), federation, **HALF | {"rounds": 1})
    torch.testing.assert_close(ran.state(), spared.state(), rtol=0, atol=1e-5)


def breaking(name: str, with_samples: int) -> Method:
    """The method with a client step that raises for clients with this number of samples."""

    class Breaking(METHODS[name]):  # type: ignore[name-defined, misc]
        def local(self, client: Client) -> Update:
            if int(client.samples) == with_samples:
                raise ValueError("out of order\nfor good")
            return super().local(client)

    return Breaking()


@common
def test_a_client_that_fails_once_is_retried(name: str, federation: Federation) -> None:
    class Shaky(METHODS[name]):  # type: ignore[name-defined, misc]
        tried: typing.ClassVar[list[int]] = []

        def local(self, client: Client) -> Update:
            self.tried.append(int(client.samples))
            if self.tried.count(SIZES[3]) == 1:
                raise ValueError("busy")
            return super().local(client)

    ran = run(with_cohorts(Shaky(), [[2, 3]]), federation, **HALF | {"rounds": 1})
    assert not ran.rounds[0].failed
    assert Shaky.tried == [SIZES[2], SIZES[3], SIZES[3]]


@common
def test_too_small_a_cohort_stops_the_run(name: str, federation: Federation) -> None:
    method = with_cohorts(breaking(name, with_samples=SIZES[3]), [[0, 3]])
    words = r"^round 1: 1 of 2 clients succeeded, run.min_cohort is 2 \(client 3: ValueError: out of order "
    if isinstance(method, Cyclic) and method.cycles() > 1:
        words = f"run.min_cohort: 2 .* at most 1 with {name}, whose rounds have several cohorts"
    with pytest.raises(FedflowError, match=words):
        run(method, federation, min_cohort=2, **HALF)


@common
def test_a_round_in_which_every_client_fails_changes_nothing(
    name: str, federation: Federation, tmp_path: Path
) -> None:
    """Neither the server nor the clients change; the run continues, and resumes as if uninterrupted."""
    method, settings = failing(name, 2), HALF | {"rounds": 3, "evaluate_every": 1, "checkpoint_every": 1}
    stopped = prepare_run(method, federation, checkpoints=tmp_path, **settings)
    with pytest.warns(
        UserWarning, match=f"^{name}: round 2: every client failed, .*ValueError: out of order"
    ):
        whole = run(method, federation, **settings)
        for report in stopped.rounds():
            if report.round == 2:
                break
    known = [{k: v for k, v in server.items() if k != "order"} for server in whole.servers]  # drawn by `plan`
    assert same(known[1], known[0])
    for vector, rows in whole.clients[0].items():
        assert all(map(torch.equal, rows, whole.clients[1][vector]))
    assert whole.rounds[1].failed.keys() == {*whole.rounds[1].cohort}
    assert whole.values("updates")[1] == whole.values("updates")[0]
    assert whole.outcome().metrics["failed_rounds"] == 1
    resumed = run(method, federation, checkpoints=tmp_path, **settings)
    assert [r.replayed for r in resumed.rounds] == [True, True, False]
    assert reports(resumed) == reports(whole) and same(resumed.state(), whole.state())


# Cohorts and clients of all sizes


@common
@pytest.mark.parametrize("client", [0, LARGEST], ids=["one sample", "most samples"])
@ways
def test_a_cohort_of_one(name: str, federation: Federation, client: int, cohort: str) -> None:
    method = with_cohorts(build_method(name), [[client], [client]])
    ran = run(method, federation, cohort=cohort, **HALF)
    assert not any(r.failed for r in ran.rounds)
    assert all(w.isfinite().all() for w in ran.state().values())
    assert 0 <= ran.outcome().metrics["local_accuracy"] <= 1


# Settings without random choices that depend on client numbers
BY_NUMBER: dict[str, dict[str, Any]] = {"fedcluster": {"grouping": "similar"}}
KEYED = {"superfed"}  # first models and draws depend on client numbers


@common
def test_renumbering_clients_changes_nothing(name: str, digits: Dataset) -> None:
    """With full batches, which are not shuffled, and equal speeds; in float64, where order hardly matters."""
    if name in KEYED or trains_alone(name) or issubclass(METHODS[name], Leveled):
        pytest.skip("its random numbers or levels depend on client numbers")
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    whole = {"training": {"batch_size": 0, "epochs": 2}, "timing": {"speeds": [[1, 1]]}}
    whole |= {"rounds": 2, "evaluate_every": 1}
    here, there = (
        run(
            name,
            suited(name, images(digits, dtype=torch.float64, order=places)),
            BY_NUMBER.get(name),
            **whole,
        )
        for places in (range(len(SIZES)), order)
    )
    expected = renumbered(by_client(here.state()), order)
    torch.testing.assert_close(by_client(there.state()), expected, rtol=0, atol=1e-12)
    accuracy, other = here.outcome().scores.local_accuracy, there.outcome().scores.local_accuracy
    assert other.tolist() == accuracy[order].tolist()


def by_client(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Clusters are numbered by first member, so compare clients' models and joint membership instead."""
    if not {"server/models", "server/assignment"} <= state.keys():
        return state
    models, cluster = state["server/models"], state["server/assignment"]
    return state | {"server/models": models[cluster], "server/assignment": cluster[:, None] == cluster}


def renumbered(state: dict[str, Tensor], order: list[int]) -> dict[str, Tensor]:
    """Rows are clients, also on the server; so are columns where there are as many."""
    n = len(order)
    rows = {name: w[order] if w.shape[:1] == (n,) else w for name, w in state.items()}
    return {name: w[:, order] if w.shape == (n, n) else w for name, w in rows.items()}


# What clients compute

WORK: dict[str, list[dict[str, Any]]] = {  # other settings in which a method computes something else
    "fedevg": [
        {},
        {"sgld_steps": 2, "lam": 0},
        {"generative": False},
        {"proposal": "cd"},
        {"proposal": "noise", "weights": "mean", "reinit": None},
    ],
    "ifca": [
        {},
        {"averaging": "gradient"},
        {"shared": "averaged", "pretraining": 1},
        {"random_assignment_rounds": 1},
    ],
    "l2gd": [{"p": 0.01}],  # enough zeros that every computed step is taken
    "perfedavg": [{}, {"order": "hessian_free"}, {"order": "second", "adaptation": 2}],
    "pfldyn": [{}, {"adaptation": {"name": "maml", "steps": 2}}],
    "propfair": [{}, {"applied": "weights"}],
    "scaffold": [{}, {"variate": "I"}],
    "subfedavg_hy": [{}, {"gate": "train"}, {"gate": "train", "rate": 0}, DENSE["subfedavg_hy"]],
    "subfedavg_un": [{}, {"gate": "train"}, DENSE["subfedavg_un"]],
}


@common
def test_simulated_time_counts_the_work_that_is_done(
    name: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass over all samples takes 1 with gradients, and 1/3 without."""
    for hyper in WORK.get(name, [{}]):
        expected: dict[int, list[float]] = {k: [] for k in range(len(SIZES))}
        done: dict[int, list[float]] = {k: [] for k in range(len(SIZES))}
        with monkeypatch.context() as patch:
            count_work(patch, expected, done, issubclass(METHODS[name], ImageMethod))
            given = [[0, 1, 0]] * len(SIZES)
            run(name, federation, hyper, timing={"given": given}, **HALF | {"training": SGD | {"epochs": 2}})
        assert sum(map(len, done.values())) >= 4
        for k, own in done.items():
            assert own == pytest.approx(expected[k][: len(own)], abs=1e-9)  # some still train at the end


def count_work(
    patch: pytest.MonkeyPatch,
    expected: dict[int, list[float]],
    done: dict[int, list[float]],
    generative: bool,
) -> None:
    """Record the ``expected`` work of every client by simulated time, and the work ``done``, in order."""
    begin, client_of = Simulation._begin, worker.client_of
    gradient, by_layer, evaluate = Client.gradient, Pieces.gradient, measures._by_chunk
    at_work = [0.0]
    share = 0.0  # of the samples of the client at work, in its current batch
    size, own = 1, None  # its number of samples, and these
    call, before = FlatModel._call, Generation.before

    def begun(self: Simulation, t: int, cycle: int, k: int, now: float, *most: int | None) -> Work:
        work = begin(self, t, cycle, k, now, *most)
        expected[k].append(work.ends - now)
        return work

    def started(job: Any, federation: Any, shard: Any, i: int, *rest: Any) -> Client:
        nonlocal at_work, size, own
        at_work = [] if isinstance(shard, OnboardingShard) else done[shard.clients[i]]
        at_work.append(0)
        client = client_of(job, federation, shard, i, *rest)
        size, own = int(client.samples), client.own
        return client

    def served(*about: Any) -> Client:
        nonlocal at_work
        at_work = [0]
        return client_of(*about)

    def counted(self: Client, w: Tensor, batch: Any, *rest: Any) -> Any:
        nonlocal share
        share = len(batch.y) / int(self.samples)
        at_work[-1] += share
        return gradient(self, w, batch, *rest)

    def counted_by_layer(self: Pieces, x: Tensor, y: Tensor, *cost: Any) -> Any:
        at_work[-1] += len(y) / size
        return by_layer(self, x, y, *cost)

    def called(self: FlatModel, train: bool, pieces: Any, *inputs: Tensor, **part: Any) -> Any:
        at_work[-1] += len(inputs[0]) / size
        return call(self, train, pieces, *inputs, **part)

    def generated(*about: Any) -> Any:
        nonlocal at_work
        at_work = [0]
        return before(*about)

    def counted_support(of: Callable[..., Any]) -> Callable[..., Any]:
        def one_more(*about: Any) -> Any:  # as much as the query, by step
            at_work[-1] += share
            return of(*about)

        return one_more

    def counted_loss(model: FlatModel, samples: Samples, *about: Any) -> Any:
        at_work[-1] += (samples is own) / 3
        return evaluate(model, samples, *about)

    patch.setattr(Simulation, "_begin", begun)
    patch.setattr(worker, "client_of", started)
    patch.setattr("fedflow.simulation.evaluation.client_of", served)
    if generative:  # all their calls of a network have gradients
        patch.setattr(FlatModel, "_call", called)
        patch.setattr(Generation, "before", generated)
        return
    patch.setattr(Client, "gradient", counted)
    patch.setattr(Pieces, "gradient", counted_by_layer)
    for name in ("data_gradient", "features"):
        patch.setattr(Client, name, counted_support(getattr(Client, name)))
    patch.setattr(measures, "_by_chunk", counted_loss)


# What the method's page says


def page(name: str) -> str:
    return sys.modules[METHODS[name].__module__].__doc__ or ""


SECTIONS = ("Source:", "*State*:", "*Traffic*:", "*Newcomer*:", "*Reduces to*")


def test_the_page_of_a_method_is_complete(name: str) -> None:
    assert [section for section in SECTIONS if section not in page(name)] == []


SCALARS = dict.fromkeys(("one scalar", "the cluster number", "the step number", "the ones", "the zeros"), 1)


@pytest.mark.parametrize("cohort", ["vmap", pytest.param("loop", marks=pytest.mark.full)])
def test_traffic_is_what_the_page_says(
    name: str, federation: Federation, cohort: str, request: pytest.FixtureRequest
) -> None:
    """Read "*Traffic*: k P down, 1 P and the cluster number up." and compare with the bytes of a run.

    m is the size of the previous cohort, 1 in the first round.
    """
    (sentence,) = re.findall(r"\*Traffic\*: (.*?)\.\s", page(name))
    method, model = build_method(name), federation.model
    symbols = {f.metadata["symbol"]: getattr(method, f.name) for f in dataclasses.fields(method)}  # type: ignore[arg-type]
    sizes = {"P": model.size, "P_body": model.size - len(model.head().index)}
    sizes["P_head"] = len(model.part(*model.shared_patterns).index)
    if model.batch_norms:
        sizes["P_shared"] = model.size - len(model.part(*(f"{norm}.*" for norm in model.batch_norms)).index)
    sizes["the mask"] = -(-model.size // 8) / 4  # a bit per entry, in whole bytes
    if isinstance(method, ImageMethod):
        sizes["the signs"] = count_of_images = method.spc * model.classes
        sizes["X"] = count_of_images * math.prod(model.input_shape)
    if isinstance(method, NetworkMethod):
        sizes["P_networks"] = sum(each.size for each in method.trained_networks(model).values())

    def count(words: str, m: int, k: int) -> int:
        """Bytes of messages such as "k P and one scalar"; KeyError for a word that is not known."""
        sizes["P_level"] = network(method, federation, level(method, federation, k)).size
        first, *more = words.split(" and ")
        *times, vector = first.split(" ")
        factors = [int(n) if n.isdigit() else (symbols | {"m": m})[n] for n in times]
        return 4 * (math.prod(factors) * sizes[vector] + sum((sizes | SCALARS)[what] for what in more))

    ways = ("", "") if sentence == "none" else re.fullmatch("(.*) down, (.*) up", sentence).groups()  # type: ignore[union-attr]
    if cohort == "vmap" and name not in DENSE:
        rounds = request.getfixturevalue("vmapped")[1]
    else:
        rounds = run(name, federation, DENSE.get(name), cohort=cohort, **HALF).rounds
    about = [*zip((1, 4), rounds, strict=True)]
    down, up = (
        [sum(count(words, m, k) for k in r.cohort) if words else 0 for m, r in about] for words in ways
    )
    assert [r.values["bytes_down"] for r in rounds] == list(itertools.accumulate(down))
    assert [r.values["bytes_up"] for r in rounds] == list(itertools.accumulate(up))


def bad_values(field: dataclasses.Field, hint: Any) -> list[Any]:
    """Values that a field cannot accept: one of another type, and one beyond each bound."""
    arms = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    wrong: dict[Any, Any] = {int: 1.5, float: "much", bool: 2, str: 3}
    bounds = field.metadata["bounds"]
    beyond = {"ge": -1, "le": 1, "gt": 0, "lt": 0}
    values = [wrong.get(arm, "text") for arm in arms if arm is not type(None)]
    values += [type(bound)(bound + beyond[op]) for op, bound in bounds.items()]
    values += ["no such choice"] if field.metadata["choices"] else []
    values += [float("nan")] if float in arms else []
    return values


def test_every_hyper_parameter_rejects_bad_values_by_its_name(name: str) -> None:
    hints = typing.get_type_hints(METHODS[name])
    for field in dataclasses.fields(METHODS[name]):  # type: ignore[arg-type]
        for value in bad_values(field, hints[field.name]):
            with pytest.raises(BadInput, match=rf"^method\.{field.name}: ") as error:
                build_method(name, {field.name: value})
            assert "\n" not in str(error.value)
    with pytest.raises(BadInput, match=r"^method\.nonsense: .*expected (one of|no name)"):
        build_method(name, {"nonsense": 1})


NEEDED = {"dimensions": {"reducer": "umap"}}  # other settings without which an option is refused


def test_every_hyper_parameter_says_what_it_is(name: str) -> None:
    for field in dataclasses.fields(METHODS[name]):  # type: ignore[arg-type]
        assert field.metadata["doc"], field.name
        for value in field.metadata["grid"]:
            build_method(name, NEEDED.get(field.name, {}) | {field.name: value})
