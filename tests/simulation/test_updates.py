"""Steps of an update on its way to the server: `clip`, and toy steps that prove the rest of the protocol."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support import (
    Ran,
    Workers,
    alike,
    forbid_fallback,
    images,
    prepare_run,
    refused,
    reports,
    run,
    same,
    suited,
    with_newcomers,
)
from torch import Tensor

from fedflow.config import load_params
from fedflow.data import Dataset
from fedflow.errors import FedflowError
from fedflow.finished.variants import differences
from fedflow.local.wire import Size
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Conditions, Method, Round
from fedflow.naming import flat, say
from fedflow.project.identity import modules_of
from fedflow.settings import option
from fedflow.simulation.federation import Federation
from fedflow.simulation.settings import RunSettings
from fedflow.simulation.updates import STEPS, UpdateStep
from fedflow.simulation.updates.clip import Clip
from fedflow.simulation.updates.step import Changed, Incoming, Outgoing, Sent, register

PARAMS = Path(__file__).parents[2] / "params.yaml"
HALF: dict[str, Any] = {"participation": 0.5, "rounds": 3, "fine_tune": False}
KINDS = (  # pruned, clustered, two vectors, single updates, asynchronous, levels, cycles, images
    *("fedavg", "subfedavg_un", "ifca", "scaffold", "cfl", "fedbuff", "heterofl", "fedcluster", "fedevg"),
)
HUGE = {"step": "clip", "norm": 1e9}


class TopK(UpdateStep):
    """The largest entries of the whole update cross; the client adds the others to its next update."""

    keeps: ClassVar[tuple[str, ...]] = ("error",)
    share: float = option(0.1, "share of the entries", gt=0, le=1)

    def change(self, sent: Outgoing) -> Changed:
        flat = sent.flat()
        whole = flat + sent.keep("error", flat)  # [C, n]
        sizes = whole.abs().round(decimals=9)  # equal ones in the order of their places, in cohorts too
        order = sizes.sort(dim=1, descending=True, stable=True).indices
        largest = order[:, : max(1, int(self.share * whole.shape[1]))]
        own = torch.zeros_like(whole).scatter(1, largest, whole.gather(1, largest))
        parts = sent.parts(own)
        entries = {name: part.flatten(1).count_nonzero(1) for name, part in parts.items()}
        left = whole - own
        return Changed(sent.moved(parts), {"error": left}, {"left": left.norm(dim=1)}, entries)

    def size(self, name: str, vectors: Mapping[str, Tensor], size: Size) -> Size:
        return size._replace(more=size.more + 4 * size.entries)  # a place each


class Noise(UpdateStep):
    """Gaussian noise of every client, and of the server; what it refuses."""

    local: float = option(0.0, "of an entry of an update")
    central: float = option(0.0, "of an entry of a mean")

    def check(self, method: Method, run: Conditions) -> None:
        if method.name == "subfedavg_un":
            raise self.unfit("with methods that do not send masks")

    def accepts(self, update: Any, received: Mapping[str, Tensor]) -> Tensor:
        return update.weight < 1000

    def change(self, sent: Outgoing) -> Changed:
        found = {}
        for name, own in sent.update.vectors.items():
            shape = own.shape[1:]
            found[name] = own + self.local * sent.drawn(name, lambda rng, s=shape: rng.normal(size=s), own)
        return Changed(found)

    def after(self, got: Incoming, mean: Tensor) -> Tensor:
        drawn = torch.from_numpy(got.rng("noise").normal(size=tuple(mean.shape)))
        return mean + (self.central / len(got.clients) * drawn).to(mean)

    def learn(self, now: Round, state: Any, sent: Sequence[Sent]) -> tuple[Any, dict[str, float]]:
        return state, {"clients": len(sent) / now.t}


class Adaptive(Clip):
    """Clipping at a norm that moves to the median of the norms (Andrew et al. 2021)."""

    rate: float = option(1.0, "step of the logarithm of the norm", ge=0)

    def start(self) -> dict[str, Tensor]:
        return {"norm": torch.tensor(self.norm, dtype=torch.float64)}

    def change(self, sent: Outgoing) -> Changed:
        return Clip(norm=float(sent.state["norm"])).change(sent)

    def learn(self, now: Round, state: Any, sent: Sequence[Sent]) -> tuple[Any, dict[str, float]]:
        clipped = np.mean([client.numbers["clipped"] for client in sent])
        norm = state["norm"] * np.exp(self.rate * (clipped - 0.5))
        return {"norm": norm}, {"norm": norm}


@pytest.fixture(autouse=True)
def toys() -> Iterator[None]:
    before = dict(STEPS)
    for name, cls in (("topk", TopK), ("noise", Noise), ("adaptive", Adaptive)):
        register(name, name)(cls)
    yield
    STEPS.clear()
    STEPS.update(before)


@pytest.fixture
def federation(digits: Dataset) -> Federation:
    return images(digits, dtype=torch.float64)


def ran(method: Any, federation: Federation, *updates: Any, **more: Any) -> Ran:
    suits = suited(method, federation) if isinstance(method, str) else federation
    return run(method, suits, updates=[*updates], **HALF | more)


@pytest.mark.parametrize("name", KINDS)
def test_clipping_at_a_huge_norm_changes_no_bit(name: str, federation: Federation) -> None:
    plain, clipped = ran(name, federation), ran(name, federation, HUGE)
    assert same(plain.state(), clipped.state())
    assert plain.values("bytes_up") == clipped.values("bytes_up")
    assert all(norm > 0 for norm in clipped.values("client/clip.norm/min"))
    assert clipped.values("client/clip.clipped/max") == [0, 0, 0]
    assert plain.simulation.fingerprint != clipped.simulation.fingerprint


@pytest.mark.parametrize("name", KINDS)
def test_clipping_is_the_same_in_cohorts_with_any_workers_and_resumed(
    name: str, federation: Federation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    norm = 0.5 * ran(name, federation, HUGE).values("client/clip.norm/mean")[0]
    step = {"step": "clip", "norm": norm}
    start = partial(prepare_run, name, suited(name, federation), updates=[step], **HALF)
    loop = alike(start, tmp_path, monkeypatch)
    assert loop.values("client/clip.clipped/max")[0] == 1
    assert not same(loop.state(), ran(name, federation).state())


def test_all_vectors_of_a_client_are_clipped_by_one_factor(federation: Federation) -> None:
    """SCAFFOLD sends two differences; FedAvg's model is one from what its clients received."""
    start = prepare_run("fedavg", federation).state.server.tensors()["model"]
    w = ran("fedavg", federation, rounds=1, participation=1).state()["server/model"]
    many = ran("fedavg", federation, {"step": "clip", "norm": 1e-3}, rounds=1, participation=1)
    assert (w - start).norm() > 0.01
    assert (many.state()["server/model"] - start).norm() <= 1e-3

    class Spy(UpdateStep):
        sent: ClassVar[list[Outgoing]] = []

        def change(self, sent: Outgoing) -> Changed:
            self.sent.append(sent)
            return Changed()

    register("spy", "spy")(Spy)
    ran("scaffold", federation, {"step": "spy"}, {"step": "clip", "norm": 0.01}, {"step": "spy"}, rounds=1)
    for before, after in zip(Spy.sent[::2], Spy.sent[1::2], strict=True):
        (dy, dc), (dy_, dc_) = ([o.update.vectors[n] for n in ("dy", "dc")] for o in (before, after))
        norm = torch.cat([dy, dc], 1).norm()
        assert norm > 0.01
        torch.testing.assert_close(torch.cat([dy_, dc_], 1), 0.01 / norm * torch.cat([dy, dc], 1))


def test_the_reference_of_a_cluster_is_its_model(federation: Federation) -> None:
    clipped = ran("ifca", federation, {"step": "clip", "norm": 1e-6}, participation=1, rounds=1)
    start = prepare_run("ifca", federation).state.server.tensors()["models"]
    assert (clipped.state()["server/models"] - start).abs().max() < 1e-5


def test_a_pruned_network_is_clipped_where_it_crosses(federation: Federation) -> None:
    """Pruned entries stay 0, so that no more bytes cross and means are over those that keep an entry."""
    pruning = {"rate": 0.5, "threshold": 0.0, "gate": "train", "distance": 0.0}
    more: dict[str, Any] = {"hyper": pruning, "participation": 1}
    plain, clipped = (
        ran("subfedavg_un", federation, *steps, **more) for steps in ((), [{"step": "clip", "norm": 0.1}])
    )
    assert clipped.values("bytes_up")[0] == plain.values("bytes_up")[0] < 8 * 8 * federation.model.size
    assert clipped.state()["server/model"].isfinite().all()


def test_top_k_of_everything_is_none_and_its_errors_cross_later(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go: dict[str, Any] = {"rounds": 4, "executor": Workers(2)}
    whole = {"step": "topk", "share": 1}
    plain, every = (ran("fedavg", federation, *of, **go).servers[-1]["model"] for of in ((), [whole]))
    torch.testing.assert_close(every, plain, rtol=0, atol=1e-12)
    step = {"step": "topk", "share": 0.05}
    sparse = ran("fedavg", federation, step, checkpoints=tmp_path / "straight", **go)
    k = int(0.05 * federation.model.size)  # entries, each with a place
    assert np.diff([0, *sparse.values("bytes_up")]).tolist() == [4 * k * (8 + 4)] * 4
    errors = sparse.clients[-1]["update.0.error"]
    took = [int(n) for n in sparse.simulation.state.participations]
    assert [error.numel() > 0 for error in errors] == [n > 0 for n in took] and max(took) > 1
    assert all(left > 0 for left in sparse.values("client/topk.left/min"))
    more = {"checkpoints": tmp_path / "killed", "checkpoint_every": 2, "executor": Workers(3), "rounds": 4}
    rounds = prepare_run("fedavg", federation, updates=[step], **HALF | more).rounds()
    assert [next(rounds).round for _ in range(3)] == [1, 2, 3]
    again = ran("fedavg", federation, step, **more)
    assert again.rounds[1].replayed and reports(again) == reports(sparse)
    assert same(again.state(), sparse.state())
    forbid_fallback(monkeypatch)
    vmapped = ran("fedavg", federation, step, rounds=4, cohort="vmap")
    torch.testing.assert_close(vmapped.state(), sparse.state(), rtol=0, atol=1e-8)


def test_newcomers_and_methods_do_not_see_what_steps_keep(federation: Federation) -> None:
    class Nosy(FedAvg):
        def local(self, client: Any) -> Any:
            assert not client.kept
            return super().local(client)

        def model_for(self, client: Any) -> Tensor:
            assert not client.kept
            return super().model_for(client)

    steps = [{"step": "topk"}]
    go = run(Nosy(), with_newcomers(federation, 2), updates=steps, fine_tune=True, rounds=2)
    outcome = go.outcome()
    assert not go.rounds[1].failed and outcome.newcomers is not None

    class Named(FedAvg):
        def client_state(self, model: Any, initial: Tensor) -> dict[str, Tensor]:
            return {"update.0.error": initial}

    with refused("'update.0.error' is a name of the engine", FedflowError):
        run(Named(), federation, updates=steps)


def test_a_median_needs_all_updates_and_is_per_cluster(federation: Federation) -> None:
    median = ran("fedavg", federation, {"step": "median"}, participation=1, rounds=1)
    models: list[Tensor] = []

    class Keeping(UpdateStep):
        def change(self, sent: Outgoing) -> Changed:
            models.extend(sent.update.vectors["model"])
            return Changed()

    register("keeping", "keeping")(Keeping)
    ran("fedavg", federation, {"step": "keeping"}, participation=1, rounds=1)
    wanted = torch.from_numpy(np.median(torch.stack(models), axis=0))
    torch.testing.assert_close(median.state()["server/model"], wanted, rtol=0, atol=0)
    assert len(models) == 8
    shared = ran("fedavg", federation, {"step": "median"}, participation=1, rounds=1, executor=Workers(3))
    assert same(median.state(), shared.state())
    clusters = ran("ifca", federation, {"step": "median"}, participation=1)
    assert not same(clusters.state(), ran("ifca", federation, participation=1).state())


def test_noise_is_keyed_by_client_and_by_mean(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = {"step": "noise", "local": 0.1, "central": 0.1}
    one, three = (ran("scaffold", federation, step, executor=Workers(n)) for n in (1, 3))
    assert same(one.state(), three.state())
    neutral = ran("scaffold", federation, {"step": "noise"})
    assert same(neutral.state(), ran("scaffold", federation).state())
    twice = ran("scaffold", federation, step, step)
    assert "update/noise-2.clients" in twice.rounds[0].values and not same(twice.state(), one.state())
    assert one.values("update/noise.clients") == [4, 2, 4 / 3]
    forbid_fallback(monkeypatch)
    vmapped = ran("scaffold", federation, step, cohort="vmap")
    torch.testing.assert_close(vmapped.state(), one.state(), rtol=0, atol=1e-8)


def test_the_server_learns_and_a_resumed_run_goes_from_there(federation: Federation, tmp_path: Path) -> None:
    """All clients are clipped at first, so that the norm grows by exp(1/2) until one of them is not."""
    step, more = {"step": "adaptive", "norm": 0.05}, {"rounds": 6, "checkpoint_every": 2}
    straight = ran("scaffold", federation, step, executor=Workers(3), **more)
    norms = straight.values("update/adaptive.norm")
    assert norms[:2] == pytest.approx([0.05 * np.exp(0.5), 0.05 * np.exp(1.0)])
    assert norms[-1] == pytest.approx(straight.simulation.state.steps["0.norm"])
    given = {"updates": [step], "checkpoints": tmp_path}
    rounds = prepare_run("scaffold", federation, **HALF | more | given).rounds()
    assert [next(rounds).round for _ in range(5)][-1] == 5
    again = ran("scaffold", federation, step, checkpoints=tmp_path, **more)
    assert again.rounds[3].replayed and reports(again) == reports(straight)
    assert same(again.state(), straight.state())
    fixed = ran("scaffold", federation, step | {"rate": 0}, **more)
    assert same(fixed.state(), ran("scaffold", federation, {"step": "clip", "norm": 0.05}, **more).state())


def test_a_step_refuses_updates_methods_and_means_in_one_line(federation: Federation) -> None:
    class Heavy(FedAvg):
        def local(self, client: Any) -> Any:
            weight = torch.where(client.samples > 20, 1000.0, 1.0)
            return client.update(model=client.received["model"], weight=weight)

    for cohort in ("loop", "vmap"):
        heavy = run(Heavy(), federation, updates=[{"step": "noise"}], cohort=cohort, rounds=1)
        failed = heavy.rounds[0].failed
        assert {*failed.values()} == {"noise refuses its update"} and len(failed) < 8
    with refused("^run.updates: 'noise' .*noise with methods that do not send masks"):
        ran("subfedavg_un", federation, {"step": "noise"})
    for step in (HUGE, {"step": "topk"}):
        with refused("^run.updates: '(clip|topk)' .*with methods whose clients send vectors of real numbers"):
            ran("local", federation, step)
    with refused("^run.updates: 'median' .*without cfl, whose server takes no mean of updates"):
        ran("cfl", federation, {"step": "median"})
    with refused(r"^run.updates\[1\].step: 'median' .*median replaces means already"):
        ran("fedavg", federation, {"step": "median"}, {"step": "median"})


def test_a_step_returns_what_it_may(federation: Federation) -> None:
    class Wrong(UpdateStep):
        what: str = option("")

        def change(self, sent: Outgoing) -> Changed:
            one = torch.zeros(len(sent.clients), 2)
            return (
                Changed(**{self.what: {"wrong": one}})
                if self.what
                else Changed(diagnostics={"a b": one[:, 0]})
            )

    register("wrong", "wrong")(Wrong)
    for what in ("vectors", "kept", "diagnostics", "entries"):
        with refused("^run.updates: wrong.change returns wrong, which it may not", FedflowError):
            ran("fedavg", federation, {"step": "wrong", "what": what})
    with refused("^run.updates: wrong: 'a b' is not the name of a number", FedflowError):
        ran("fedavg", federation, {"step": "wrong"})


def test_an_update_that_a_step_spoils_is_refused(federation: Federation) -> None:
    class Spoils(UpdateStep):
        def change(self, sent: Outgoing) -> Changed:
            odd = torch.tensor([k % 2 for k in sent.clients], dtype=torch.bool)
            return Changed(
                {n: v.masked_fill(odd[:, None], torch.nan) for n, v in sent.update.vectors.items()}
            )

    register("spoils", "spoils")(Spoils)
    for cohort in ("loop", "vmap"):
        report = ran("fedavg", federation, {"step": "spoils"}, participation=1, cohort=cohort).rounds[0]
        assert report.failed == dict.fromkeys((1, 3, 5, 7), "its update holds NaN or infinite values")


def test_steps_are_a_list_in_params() -> None:
    assert load_params(PARAMS).run.updates == []
    (step,) = load_params(PARAMS, ["run.updates=[{step: clip, norm: 1}]"]).run.updates
    assert step.as_dict() == {"step": "clip", "norm": 1.0}
    assert __name__ in modules_of(RunSettings.parse({"updates": [{"step": "topk"}]}))
    for given, message in (
        ("[{norm: 1}]", r"^run.updates\[0\].step: missing; expected one of .*clip"),
        ("[{step: clp}]", r"^run.updates\[0\].step: 'clp' .*did you mean 'clip'"),
        ("[{step: clip, nrm: 1}]", r"^run.updates\[0\].nrm: 'nrm' .*did you mean 'norm'"),
        ("[{step: clip, norm: 0}]", r"^run.updates\[0\].norm: 0.0 .*a number > 0"),
        ("[clip]", r"^run.updates\[0\]: 'clip' .*a mapping with `step` and parameters"),
    ):
        with refused(message):
            load_params(PARAMS, [f"run.updates={given}"])


def test_a_variant_is_named_after_its_steps() -> None:
    plain, clipped = (
        flat({"run": load_params(PARAMS, changes).run.as_dict()})
        for changes in ([], ["run.updates=[{step: clip, norm: 1}]"])
    )
    old = {name: value for name, value in plain.items() if name != "run.updates"}  # of a version without
    assert differences(old, plain, plain) == differences(plain, old, plain) == {}
    found = differences(clipped, plain, plain)
    assert [say(*item) for item in found.items()] == ["updates step clip, norm 1.0"]


SEVERAL = {
    "models": {},
    "gradients": {"averaging": "gradient", "server_lr": 1},
    "gradients of heads": {"averaging": "gradient", "server_lr": 1, "shared": "averaged"},
    "pretraining": {"pretraining": 3, "random_assignment_rounds": 1},
    "random assignment": {"random_assignment_rounds": 2},
}


@pytest.mark.parametrize("hyper", SEVERAL.values(), ids=SEVERAL)
def test_updates_are_measured_from_the_model_that_a_client_trains(
    hyper: dict[str, Any], federation: Federation
) -> None:
    step, parts = {"step": "clip", "norm": 1e-6}, ("models", "body", "pretrained")
    simulation = prepare_run("ifca", federation, hyper, updates=[step], rounds=5)
    before = simulation.state.server.tensors()
    next(simulation.rounds())
    after = simulation.state.server.tensors()
    assert all((after[name] - before[name]).abs().max() < 1e-5 for name in parts if name in before)


def test_updates_of_flis_are_measured_from_the_chosen_model(federation: Federation) -> None:
    """Nothing is averaged, and clients hardly train: every model stays where it is."""
    step, training = {"step": "clip", "norm": 0.1}, {"epochs": 5, "lr": 0.5, "lr_decay": 1e-9}
    ran = run("flis_dc", federation, {"beta": 1.1}, updates=[step], rounds=3, training=training)
    models = ran.servers[1]["models"]
    assert (models[1:] - models[0]).norm(dim=1).max() > 0.11
    for model in ran.servers[2]["models"]:
        assert (models - model).norm(dim=1).min() < 1e-5
