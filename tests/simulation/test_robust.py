"""Aggregation rules and attacks: published cases, reductions, and runs with attackers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import Ran, Workers, alike, follow, images, prepare_run, refused, run, same, suited, with_pixels
from torch import Tensor

from fedflow.data import Dataset
from fedflow.local.local_training import LocalTraining
from fedflow.project.code import closure, modules_of
from fedflow.seeding import generator, place
from fedflow.simulation.extensions.all_extensions import registered_modules
from fedflow.simulation.extensions.backdoor import Backdoor
from fedflow.simulation.federation import Federation
from fedflow.simulation.updates import STEPS, UpdateStep
from fedflow.simulation.updates.alie import deviations
from fedflow.simulation.updates.step import Arrived, Changed, Incoming, Outgoing

# Inputs and outputs of lishenghui/blades, fllib/aggregators/tests/test_aggregators.py, and of adap/flower,
# framework/py/flwr/server/strategy/{krum,multikrum,bulyan,fedmedian}_test.py, whose four entries are equal.
BLADES = [[1, 2, 3], [-1, 4, -1], [2, 2, 3], [3, 1, 3]]
CASES: list[tuple[str, dict[str, Any], list[Any], list[float]]] = [
    ("median", {}, BLADES, [1.5, 2, 3]),
    ("trimmed_mean", {"attackers": 0.25}, BLADES, [1.5, 2, 3]),
    ("median", {}, [[0.2], [1.0], [0.5]], [0.5]),
    ("krum", {"attackers": 0.3}, [[0.2], [0.7], [1.0]], [0.7]),
    ("krum", {"attackers": 0.3, "keep": 2}, [[0.2], [0.5], [1.0]], [0.35]),
    ("bulyan", {"attackers": 0}, [[0.2], [0.5], [0.7], [12.0], [0.1], [0.1]], [13.6 / 6]),
]
HOSTILE = (
    {"step": "sign_flip", "share": 0.3},
    {"step": "gaussian_attack", "share": 0.1, "std": 0.1},
    {"step": "alie", "share": 0.3, "z": 1},
    {"step": "inner_product", "share": 0.3},
)
DEFENSES = (
    [{"step": "norm_bound"}, {"step": "median"}],
    [{"step": "centered_clipping", "radius": 0.05}, {"step": "geometric_median"}],
    [{"step": "trimmed_mean"}],
    [{"step": "krum", "keep": 2}],
    [{"step": "bulyan", "attackers": 0.1}],
)


def drawn(purpose: str) -> np.random.Generator:
    return generator(0, purpose)


def step(name: str, **options: Any) -> UpdateStep:
    return UpdateStep.parse({"step": name, **options})


def combined(rule: UpdateStep, vectors: Any, weights: Sequence[float] | None = None) -> Tensor:
    rows = torch.as_tensor(vectors)
    weights_of = np.ones(len(rows)) if weights is None else np.array(weights)
    got = Incoming("model", None, range(len(rows)), weights_of, 1, {}, drawn)
    return rule.combine(got, rows)


def met(
    rule: UpdateStep, sent: Any, received: Any, places: Sequence[float] = (), groups: Sequence[int] = ()
) -> Tensor:
    """The models after `UpdateStep.meet`."""
    rows, count = torch.as_tensor(sent, dtype=torch.float64), len(sent)
    start = torch.as_tensor(received, dtype=torch.float64)
    messages = [{"models": start} if groups else {"model": start}] * count
    got = Arrived(
        *(range(count), [*groups] or [0] * count, [1.0] * count, [*places] or [1.0] * count, 1),
        *({"model": [*rows]}, messages, {}, drawn),
    )
    return torch.stack([*rule.meet(got)["model"]])


@pytest.fixture
def federation(digits: Dataset) -> Federation:
    return images(digits, dtype=torch.float64)


@pytest.fixture
def equal(digits: Dataset) -> Federation:
    """Ten clients with the same number of samples."""
    return images(digits, (20,) * 10)


def ran(method: str, federation: Federation, *updates: Mapping[str, Any], **more: Any) -> Ran:
    return run(method, suited(method, federation), updates=[*updates], **{"rounds": 2} | more)


@pytest.mark.parametrize(("name", "options", "vectors", "wanted"), CASES, ids=[case[0] for case in CASES])
def test_rules_give_published_numbers(
    name: str, options: Any, vectors: Any, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = torch.tensor(vectors, dtype=torch.float32)
    torch.testing.assert_close(combined(step(name, **options), rows), torch.tensor(wanted))
    monkeypatch.setattr("fedflow.simulation.updates.rules.NUMBERS", 5)  # one or two coordinates at once
    torch.testing.assert_close(combined(step(name, **options), rows), torch.tensor(wanted))


def test_the_geometric_median_minimizes_the_weighted_distances() -> None:
    """Blades tests that the unit vectors to its input cancel out; here they do by weight."""
    rule = step("geometric_median", iterations=1000, smoothing=1e-8)
    rows = torch.tensor(BLADES, dtype=torch.float64)
    for weights in ([1, 1, 1, 1], [1, 2, 2, 1]):
        away = rows - combined(rule, rows, weights)
        units = torch.tensor(weights)[:, None] * away / away.norm(dim=1, keepdim=True)
        assert units.sum(0).abs().max() < 1e-3
    one = combined(step("geometric_median", iterations=1), rows, [1, 1, 1, 1])
    weights = 1 / (rows - rows.mean(0)).norm(dim=1)  # a step of Weiszfeld from the mean
    torch.testing.assert_close(one, weights @ rows / weights.sum())


def test_distances_are_exact_next_to_a_far_vector() -> None:
    rows = torch.tensor([[0.0, 0.0], [1e-3, 0.0], [0.0, 2e-3], [1e9, 1e9]], dtype=torch.float64) + 5
    far = combined(step("krum", attackers=0), rows)
    torch.testing.assert_close(far, rows[0], rtol=0, atol=0)


def test_a_rule_with_too_few_vectors_takes_what_it_can() -> None:
    rows = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    assert combined(step("krum", attackers=0.49), rows[:2]) == 0.5  # the median
    assert combined(step("krum", attackers=0.49), rows) == combined(step("krum", attackers=0), rows)
    assert combined(step("trimmed_mean", attackers=0.49), rows) == 5.5
    assert combined(step("trimmed_mean", attackers=0.49), rows[:1]) == 0


def test_krum_and_bulyan_are_those_of_the_papers() -> None:
    """f = 1 of 7 random vectors, with loops over clients."""
    rows = generator(0, "vectors").normal(size=(7, 5))

    def best(left: list[int]) -> int:
        far = {i: sorted(((rows[i] - rows[j]) ** 2).sum() for j in left if j != i) for i in left}
        return min(left, key=lambda i: sum(far[i][: max(1, len(left) - 3)]))

    krum = combined(step("krum", attackers=1 / 7), rows)
    np.testing.assert_allclose(krum, rows[best([*range(7)])], rtol=0, atol=0)
    left: list[int] = [*range(7)]
    chosen = rows[[left.pop(left.index(best(left))) for _ in range(5)]]
    near = [sorted(entries, key=lambda x: abs(x - np.median(entries)))[:3] for entries in chosen.T]
    np.testing.assert_allclose(combined(step("bulyan", attackers=1 / 7), rows), np.mean(near, axis=1))


def test_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedflow.simulation.updates.rules.LARGE", 10)
    with pytest.warns(UserWarning, match=r"^run.updates: median holds 0.0 GiB of updates$"):
        combined(step("median"), BLADES)


def test_norms_are_bounded_by_their_median_in_every_cluster() -> None:
    models = [[3.0, 4.0], [0.0, 1.0], [0.0, 2.0], [5.0, 15.0], [5.0, 6.0]]
    found = met(step("norm_bound"), models, [[0.0, 0.0], [5.0, 5.0]], groups=[0, 0, 0, 1, 1])
    wanted = [[1.2, 1.6], [0.0, 1.0], [0.0, 2.0], [5.0, 10.5], [5.0, 6.0]]  # bounds 2 and (10 + 1) / 2
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))


def test_centered_clipping_iterates() -> None:
    sent, start, radius = np.array([[1.0, 0.0], [0.0, 2.0], [40.0, 30.0]]), np.array([1.0, 1.0]), 1.5
    v = np.zeros(2)
    for _ in range(3):
        away = sent - start - v
        v = v + (away * np.minimum(1, radius / np.linalg.norm(away, axis=1))[:, None]).mean(0)
    found = met(step("centered_clipping", radius=radius, iterations=3), sent, start)
    np.testing.assert_allclose(found.mean(0) - start, v, rtol=1e-12)


def test_colluding_attackers_send_what_the_papers_say() -> None:
    """s = floor(50 / 2 + 1) - 24 = 2 of 26 honest ones must be won: Phi(z) = 24 / 26, z = 1.43."""
    assert deviations(50, 24) == pytest.approx(1.4260769)
    assert [deviations(*of) for of in ((5, 1), (4, 1), (4, 3))] == [0, 0, 3]
    sent, places = [[1.0], [3.0], [5.0], [100.0], [102.0]], [0.5, 0.5, 0.5, 0.1, 0.1]
    std = np.std([1.0, 3.0, 5.0])
    for attack, wanted in (
        (step("alie", z=2), 3 - 2 * std),
        (step("alie", z=2, knows="attackers"), 101 - 2),
        (step("inner_product", scale=0.5), 1 - 0.5 * 2),  # the mean update is 2
    ):
        found = met(attack, sent, [1.0], places).flatten().tolist()
        assert found == pytest.approx([1, 3, 5, wanted, wanted])
    found = met(step("inner_product", scale=1.0), sent, [[1.0], [2.0]], places, [0, 0, 1, 1, 0])
    assert found.flatten().tolist() == [1, 3, 5, -1, 0]  # updates 0 and 2 in cluster 0, 3 in cluster 1


@pytest.mark.parametrize("name", ["fedavg", "ifca", "scaffold", "pacfl"])
def test_without_attackers_no_bit_changes(name: str, federation: Federation) -> None:
    plain = ran(name, federation)
    none = ran(name, federation, *({**attack, "share": 0} for attack in HOSTILE))
    wide = ran(
        name, federation, {"step": "norm_bound", "factor": 1e9}, {"step": "centered_clipping", "radius": 1e9}
    )
    assert same(plain.state(), none.state()) and same(plain.state(), wide.state())
    assert none.values("update/sign_flip.attackers") == [0, 0]


@pytest.mark.parametrize(
    "rule",
    [
        {"step": "trimmed_mean", "attackers": 0},
        {"step": "krum", "keep": 10},
        {"step": "bulyan", "attackers": 0},
    ],
    ids=lambda rule: rule["step"],
)
def test_rules_that_leave_nobody_out_give_the_mean(rule: dict[str, Any], equal: Federation) -> None:
    assert same(ran("fedavg", equal).state(), ran("fedavg", equal, rule).state())


@pytest.mark.parametrize(
    ("name", "defense"),
    [(method, steps) for method, steps in zip(["fedavg", "ifca"] * 3, DEFENSES)],
    ids=lambda value: value if isinstance(value, str) else value[-1]["step"],
)
def test_attacks_and_rules_are_the_same_in_cohorts_with_any_workers_and_resumed(
    name: str, defense: Any, federation: Federation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = (*HOSTILE, *defense)
    start = partial(prepare_run, name, suited(name, federation), updates=[*steps], rounds=2)
    loop = alike(start, tmp_path, monkeypatch, every=1)
    assert loop.values("update/sign_flip.attackers") == [3, 3]  # places below 0.3 of 8 clients
    assert loop.values("update/gaussian_attack.attackers") == [1, 1]
    assert not same(loop.state(), ran(name, federation).state())


def test_a_cluster_has_its_own_median(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[tuple[int, Tensor]] = []

    class Spy(UpdateStep):
        def change(self, sent: Outgoing) -> Changed:
            models.extend(zip(sent.update.group.tolist(), sent.update.vectors["model"], strict=True))
            return Changed()

    monkeypatch.setitem(STEPS, "spy", Spy)
    found = ran("ifca", federation, {"step": "spy"}, {"step": "median"}, rounds=1).state()["server/models"]
    assert len({group for group, _ in models}) > 1
    for group in {group for group, _ in models}:
        own = torch.stack([w for g, w in models if g == group])
        torch.testing.assert_close(found[group], torch.from_numpy(np.median(own, axis=0)), rtol=0, atol=0)


def test_a_fifth_of_flipped_signs_ruins_the_mean_and_not_robust_rules(equal: Federation) -> None:
    attack = {"step": "sign_flip", "share": 0.2, "scale": 4}
    more: dict[str, Any] = {"rounds": 8, "evaluate_every": 8}
    training = {"epochs": 2, "batch_size": 5, "lr": 0.5}

    def accuracy(*updates: Mapping[str, Any]) -> float:
        return ran("fedavg", with_pixels(equal), *updates, training=training, **more).values(
            "global_accuracy"
        )[-1]

    assert accuracy() > 0.75 and accuracy(attack) < 0.2
    assert accuracy(attack, {"step": "median"}) > 0.6
    assert accuracy(attack, {"step": "krum", "keep": 4}) > 0.75


def test_rules_and_attacks_refuse_what_they_cannot_do(federation: Federation) -> None:
    few = "at least 2 f [+] 3 clients in a cohort; it has 4, of which f = 1 attack"
    with refused(f"^run.updates: 'krum' .*expected krum with {few}$"):
        ran("fedavg", federation, {"step": "krum"}, participation=0.5)
    with refused("^run.updates: 'bulyan' .*at least 4 f [+] 3 clients in a cohort; it has 8, of which f = 2"):
        ran("fedavg", federation, {"step": "bulyan"})
    for name in ("norm_bound", "inner_product", "median", "krum"):
        with refused(f"^run.updates: '{name}' .*without subfedavg_un, whose clients send vectors in part"):
            ran("subfedavg_un", federation, {"step": name})
    uneven = [torch.zeros(2), torch.zeros(3)]
    with refused("^run.updates: 'alie' .*without methods whose vectors model differ in size"):
        step("alie").meet(Arrived([0, 1], [0, 0], [1, 1], [0, 1], 1, {"model": uneven}, [{}, {}], {}, drawn))
    with refused("^run.updates: 'median' .*without cfl, whose server takes no mean of updates"):
        ran("cfl", federation, {"step": "median"})
    for name, reason in (
        ("fedac", "averages single models in clusters"),
        ("fedmgda", "weighs single updates"),
    ):
        with refused(f"^run.updates: 'median' .*expected median without {name}, which {reason} itself$"):
            prepare_run(name, federation, updates=[{"step": "median"}])
    for name, steps in (("local", []), ("fedavg", [{"step": "secure"}])):
        with refused(
            "'norm_bound' .*norm_bound without secure, with methods whose clients send vectors of real"
        ):
            ran(name, federation, {"step": "norm_bound"}, *steps)


SGD: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.1}
FLIPPED = {"label_flip": {"share": 0.3}}
POISONED = {"backdoor": {"share": 0.3, "target": 2, "value": 2.0}}


def trained(federation: Federation, extensions: Any, method: str = "fedavg", **more: Any) -> Ran:
    return run(
        method,
        federation,
        training={**SGD, "extensions": extensions},
        **{"rounds": 2, "evaluate_every": 1} | more,
    )


def test_attacks_on_data_are_the_same_in_cohorts_with_any_workers_and_resumed(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    extensions = FLIPPED | POISONED
    training = {**SGD, "extensions": extensions}
    start = partial(prepare_run, "fedavg", federation, training=training, rounds=2, evaluate_every=1)
    loop = alike(start, tmp_path, monkeypatch, every=1, tolerance=1e-9)
    for name in extensions:
        assert loop.values(f"client/{name}/mean") == [3 / 8] * 2
    none = trained(federation, {name: {**options, "share": 0} for name, options in extensions.items()})
    plain = trained(federation, {})
    assert same(none.state(), plain.state()) and not same(loop.state(), plain.state())


@pytest.mark.parametrize("labels", ["reverse", "next"])
def test_flipped_labels_are_those_of_relabeled_data(labels: str, federation: Federation) -> None:
    y = federation.train.y.clone()
    for k in range(8):
        if place(0, k, 8) < 0.3:
            rows = torch.from_numpy(federation.partition.train(k))
            y[rows] = 9 - y[rows] if labels == "reverse" else (y[rows] + 1) % 10
    assert (y != federation.train.y).any()
    relabeled = replace(federation, train=federation.train.relabeled(y.numpy()))
    flipped = trained(federation, {"label_flip": {"share": 0.3, "labels": labels}})
    assert same(flipped.state(), trained(relabeled, {}).state())


def test_the_success_of_a_back_door_is_that_of_the_served_models(federation: Federation) -> None:
    """Computed by hand: honest clients, their test samples of other classes, the corner of white pixels."""
    for method in ("fedavg", "ditto"):
        simulation = prepare_run(
            method, federation, training={**SGD, "extensions": POISONED}, rounds=2, evaluate_every=1
        )
        go = follow(simulation)
        served, test, partition = go.outcome(), federation.test, federation.partition
        found: list[float] = []
        for k in range(8):
            rows = torch.from_numpy(partition.test(k))
            rows = rows[test.y[rows] != 2]
            if place(0, k, 8) >= 0.3 and len(rows):
                x = test.inputs(rows, torch.float64).clone()
                x[:, :, -3:, -3:] = 2.0
                w = served.models[0 if method == "fedavg" else k]
                found.append(float((federation.model.outputs(w, x).argmax(-1) == 2).double().mean()))
        assert go.values("method/backdoor_success")[-1] == pytest.approx(np.mean(found))


def test_a_back_door_opens(equal: Federation) -> None:
    extension = {"backdoor": {"share": 0.3, "target": 2, "value": 3.0}}
    go = trained(equal, extension, rounds=8, evaluate_every=8, executor=Workers(2))
    assert "method/backdoor_success" not in trained(equal, {}, rounds=1).rounds[0].values
    assert go.values("method/backdoor_success")[-1] > 0.8
    closed = trained(equal, {"backdoor": {**extension["backdoor"], "share": 0}}, rounds=8, evaluate_every=8)
    assert closed.values("method/backdoor_success")[-1] < 0.4
    assert closed.simulation.fingerprint != go.simulation.fingerprint


def test_only_runs_with_a_back_door_depend_on_its_code() -> None:
    assert closure("fedflow.stages.federate", *registered_modules()) == closure("fedflow.stages.federate")
    assert Backdoor.__module__ in modules_of(LocalTraining.parse({"extensions": POISONED}))
    assert Backdoor.__module__ not in closure("fedflow.stages.federate")


def test_attacks_on_data_refuse_what_they_cannot_do(federation: Federation) -> None:
    for extensions, message in (
        ({"label_flip": {"classes": 5}}, "^training.extensions.label_flip.classes: 5 .*10, the classes of"),
        ({"backdoor": {"target": 10}}, "^training.extensions.backdoor.target: 10 .*a class, at most 9"),
        ({"backdoor": {"size": 9}}, "^training.extensions.backdoor.size: 9 .*at most 8, the side of the"),
    ):
        with refused(message):
            trained(federation, extensions)
    with refused("label_flip: .* expected null with fedsgd, which trains on full gradients"):
        prepare_run("fedsgd", federation, training={"extensions": FLIPPED})
