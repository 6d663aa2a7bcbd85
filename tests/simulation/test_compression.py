"""Compressed messages: closed forms of every code, error feedback, traffic, and both directions."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations, product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support import Ran, alike, images, prepare_run, quadratics, refused, run, same, suited
from torch import Tensor

from fedflow.data import Dataset, Examples
from fedflow.local.client import Update
from fedflow.local.wire import Size
from fedflow.methods.method import Method, ServerState
from fedflow.simulation.federation import Federation
from fedflow.simulation.updates import STEPS, UpdateStep
from fedflow.simulation.updates._compression import Compression
from fedflow.simulation.updates.qsgd import QSGD
from fedflow.simulation.updates.random_k import RandomK
from fedflow.simulation.updates.sign import Sign
from fedflow.simulation.updates.step import Changed, Outgoing, register
from fedflow.simulation.updates.top_k import TopK

U = torch.tensor([[4.0, -1.0, 0.5, 2.0, 0.0]], dtype=torch.float64)
SOME: dict[str, Any] = {"participation": 0.5, "rounds": 3, "fine_tune": False}
FEW = {  # a lossy setting of every step
    "top_k": {"share": 0.05},
    "random_k": {"share": 0.2},
    "qsgd": {"levels": 8, "bucket": 64},
    "sign": {},
}
NEUTRAL: list[dict[str, Any]] = [
    {"step": "top_k", "share": 1, "feedback": True},
    {"step": "random_k", "share": 1},
    {"step": "qsgd", "levels": 2**63, "feedback": True},
]
# Methods whose clients receive different vectors.
SEVERAL = ("fedbuff", "ifca", "fedcluster", "heterofl", "subfedavg_un")


@pytest.fixture
def federation(digits: Dataset) -> Federation:
    return images(digits, dtype=torch.float64)


@pytest.fixture
def spy() -> Iterator[list[Outgoing]]:
    """The updates that reach each step ``spy``."""
    before = dict(STEPS)

    class Spy(UpdateStep):
        sent: ClassVar[list[Outgoing]] = []

        def change(self, sent: Outgoing) -> Changed:
            self.sent.append(sent)
            return Changed()

    register("spy", "spy")(Spy)
    yield Spy.sent
    STEPS.clear()
    STEPS.update(before)


def ran(method: str, federation: Federation, *updates: Any, **more: Any) -> Ran:
    return run(method, suited(method, federation), updates=[*updates], **SOME | more)


def decoded(step: Compression, u: Tensor, drawn: Any = None) -> Tensor:
    """C(u) with these draws."""

    def draw(of: Callable[[np.random.Generator], np.ndarray], like: Tensor) -> Tensor:
        return torch.as_tensor(drawn).view_as(like).to(like)

    return step.code(u, torch.ones_like(u, dtype=torch.bool), draw).decoded


def expected(step: Compression, u: Tensor, outcomes: list[tuple[float, Any]]) -> tuple[Tensor, float]:
    """E C(u) and E ||C(u) - u||^2 over all outcomes: their chances and draws."""
    codes = [(chance, decoded(step, u, drawn)) for chance, drawn in outcomes]
    assert sum(chance for chance, _ in codes) == pytest.approx(1, rel=1e-15)
    return sum(p * c for p, c in codes), float(sum(p * (c - u).square().sum() for p, c in codes))  # type: ignore[return-value]


def test_random_k_is_unbiased_with_its_variance_over_all_subsets() -> None:
    drawn = [(1 / 120, order) for order in permutations(range(5))]
    mean, error = expected(RandomK(share=0.4), U, drawn)
    torch.testing.assert_close(mean, U, rtol=1e-14, atol=0)
    assert error == pytest.approx((5 / 2 - 1) * float(U.square().sum()))
    mean, error = expected(RandomK(share=0.4, feedback=True), U, drawn)
    torch.testing.assert_close(mean, 2 / 5 * U)
    assert error == pytest.approx((1 - 2 / 5) * float(U.square().sum()))


@pytest.mark.parametrize("levels", [1, 2, 3, 7])
def test_qsgd_is_unbiased_with_its_variance_over_all_roundings(levels: int) -> None:
    u = torch.cat([U, U / 3], 1).repeat(1, 10)  # long enough for a code that is shorter than the numbers
    u[:, 8:] = 0
    step, few = QSGD(levels=levels), 8
    chances = (levels * u.abs() / u.norm())[0, :few] % 1
    norm, squares = float(u.norm()), float(u.square().sum())
    outcomes = []
    for ups in product([True, False], repeat=few):
        chance = math.prod(float(p if up else 1 - p) for up, p in zip(ups, chances))
        outcomes.append((chance, [0.0 if up else 1 - 1e-16 for up in ups] + [0.5] * (u.shape[1] - few)))
    mean, error = expected(step, u, outcomes)
    torch.testing.assert_close(mean, u, rtol=1e-12, atol=1e-14)
    assert error == pytest.approx((norm / levels) ** 2 * float((chances * (1 - chances)).sum()))
    omega = min(100 / levels**2, 10 / levels)
    assert error <= omega * squares
    mean, error = expected(replace(step, feedback=True), u, outcomes)
    torch.testing.assert_close(mean, u / (1 + omega))
    assert error <= (1 - 1 / (1 + omega)) * squares
    halves = QSGD(levels=levels, bucket=50)
    parts = [decoded(step, half, torch.full_like(half, 0.3)) for half in u.split(50, 1)]
    assert torch.equal(decoded(halves, u, torch.full_like(u, 0.3)), torch.cat(parts, 1))
    assert torch.equal(decoded(replace(halves, bucket=40), 0 * u, [0.0] * 120), 0 * u)  # no norm; padded


def test_top_k_and_signs_are_contractions() -> None:
    assert decoded(TopK(share=0.4), U).tolist() == [[4, 0, 0, 2, 0]]
    equal = torch.tensor([[3.0, -3.0, 3.0, -3.0]])
    assert decoded(TopK(share=0.5), equal).tolist() == [[3, -3, 0, 0]]  # the bound is tight, the first cross
    rows = torch.randn(50, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    squares = rows.square().sum(1)
    for share in (0.1, 0.5):
        left = (rows - decoded(TopK(share=share), rows)).square().sum(1)
        assert (left <= (1 - share) * squares).all()
    assert decoded(Sign(), U).tolist() == [[1.5, -1.5, 1.5, 1.5, 1.5]]
    left = (rows - decoded(Sign(), rows)).square().sum(1)
    torch.testing.assert_close(left, squares - rows.abs().sum(1).square() / 40)


def outgoing(t: int, vectors: dict[str, Tensor], kept: list[dict[str, Tensor]]) -> Outgoing:
    """Two clients that received zeros; of ``model``, the entries of ``mask`` cross."""
    received = {"model": torch.zeros(8, dtype=torch.float64)}
    ones = torch.ones(2)

    def rng(purpose: str, client: int) -> np.random.Generator:
        return np.random.default_rng([t, client, len(purpose)])

    arguments = t, Update(vectors, ones, ones.long()), [received] * 2, kept, {}, {"model": "mask"}
    return Outgoing([0, 1], *arguments, rng, "step")


@pytest.mark.parametrize("name", FEW)
def test_sent_and_kept_are_the_sum_of_all_updates(name: str) -> None:
    """To the last bit where entries cross as they are; signs and QSGD round their factors."""
    step = STEPS[name].parse(FEW[name] | {"step": name, "feedback": True})
    random = torch.Generator().manual_seed(1)
    kept: list[dict[str, Tensor]] = [{}, {}]
    total = sent = torch.zeros(2, 108, dtype=torch.float64)
    for t in range(1, 7):
        mask = torch.rand(2, 8, generator=random) < 0.6
        whole = torch.randint(-50, 50, (2, 108), generator=random).double()
        whole[:, :8] *= mask
        vectors = {"model": whole[:, :8], "mask": mask, "more": whole[:, 8:].reshape(2, 10, 10)}
        changed = step.change(outgoing(t, vectors, kept))
        after = torch.cat([changed.vectors[n].flatten(1) for n in ("model", "more")], 1)
        assert not after[:, :8][~mask].any()  # pruned entries stay 0
        total, sent = total + whole, sent + after
        error = changed.kept["error"]
        kept = [{"error": error[0]}, {"error": error[1]}]
        exact = 1e-11 if name in ("qsgd", "sign") else 0
        torch.testing.assert_close(sent + error, total, rtol=0, atol=exact)
    assert error.any()


def test_sizes_are_counted_in_bits() -> None:
    plain = Size(1000, 32)
    vectors = {"model": torch.zeros(1000)}
    for step, entries, wanted in (
        (TopK(share=0.05), 50, 50 * 4 + math.ceil(50 * 10 / 8)),  # 2^10 >= 1000
        (TopK(share=0.5), 500, 500 * 4 + 125),  # a bit each is less than 10 for every second one
        (TopK(share=1), 1000, 4000),
        (RandomK(share=0.05), 50, 200),
        (QSGD(levels=1), 1000, 250 + 4),
        (QSGD(levels=7, bucket=300), 1000, 500 + 4 * 4),
        (QSGD(levels=2**31), 1000, 4000),  # 33 bits
        (QSGD(levels=7), 50, 25 + 4),  # of top-k
        (Sign(), 1000, 125 + 4),
    ):
        assert step.size("model", vectors, plain._replace(entries=entries)).bytes == wanted, step
        assert replace(step, direction="down").size("model", vectors, plain) == plain


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto", *SEVERAL])
def test_neutral_compression_changes_no_bit(name: str, federation: Federation) -> None:
    direction = "up" if name in SEVERAL else "both"
    plain = ran(name, federation)
    for step in NEUTRAL:
        neutral = ran(name, federation, step | {"direction": direction})
        state = neutral.state()
        assert same({key: state[key] for key in plain.state()}, plain.state())
        for values in ("bytes_up", "bytes_down"):
            assert neutral.values(values) == plain.values(values)
        assert not any(neutral.values(f"client/{step['step']}.lost/max"))


@pytest.mark.parametrize(
    ("name", "method", "direction"),
    [
        ("top_k", "scaffold", "both"),
        ("top_k", "subfedavg_un", "up"),
        ("random_k", "ifca", "up"),
        ("qsgd", "ditto", "both"),
        ("sign", "fedavg", "both"),
        ("sign", "fedbuff", "up"),
    ],
)
def test_compression_is_the_same_in_cohorts_with_any_workers_and_resumed(
    name: str,
    method: str,
    direction: str,
    federation: Federation,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    step = {"step": name, "direction": direction, "feedback": True} | FEW[name]
    # Pixels that are the same in all images tie, so that last bits would decide which entries are sent.
    x, noise = federation.train.x, torch.Generator().manual_seed(0)
    spread = x + torch.randn(x.shape, generator=noise, dtype=x.dtype) / 100
    federation = replace(federation, train=Examples(spread, federation.train.y))
    start = partial(prepare_run, method, suited(method, federation), updates=[step], **SOME)
    loop = alike(start, tmp_path, monkeypatch)
    plain = ran(method, federation)
    assert not same({key: loop.state()[key] for key in plain.state()}, plain.state())
    assert loop.values("bytes_up")[-1] < plain.values("bytes_up")[-1] / 2
    assert (loop.values("bytes_down")[-1] < plain.values("bytes_down")[-1]) == (direction == "both")
    assert all(lost > 0 for lost in loop.values(f"client/{name}.lost/min"))


@pytest.mark.parametrize("feedback", [False, True])
def test_clients_hold_the_model_of_the_server_by_compressed_differences(
    feedback: bool, federation: Federation, spy: list[Outgoing]
) -> None:
    """The server adds differences to its own model, and serves C of what that moved or of what is missing."""
    step = {"step": "top_k", "share": 0.2, "direction": "down", "feedback": feedback}
    down = ran("fedavg", federation, {"step": "spy"}, step, participation=1, rounds=4)
    models = [prepare_run("fedavg", federation).state.server.tensors()["model"]]
    models += [server["model"] for server in down.servers]
    weights = torch.tensor([float(n) for n in down.simulation.sizes], dtype=torch.float64)
    held = models[0]
    for t in range(4):
        if t:
            since = held if feedback else models[t - 1]
            held = held + decoded(TopK(share=0.2), (models[t] - since)[None])[0]
        sent = spy[8 * t : 8 * t + 8]
        for client in sent:
            torch.testing.assert_close(client.received[0]["model"], held, rtol=0, atol=1e-12)
        moved = torch.stack(
            [c.update.vectors["model"][0] - held for c in sorted(sent, key=lambda c: c.clients)]
        )
        mean = (weights[:, None] * moved).sum(0) / weights.sum()
        torch.testing.assert_close(models[t + 1], models[t] + mean, rtol=0, atol=1e-12)
    assert (models[3] - held).norm() > 1e-3


def test_clients_pay_for_messages_that_they_missed(federation: Federation) -> None:
    """With half of the clients, two messages each, or the whole vector if it is shorter."""
    n = federation.model.size
    k = round(0.05 * n)
    for share, catch_up, received in (
        (0.05, None, 2 * (8 * k + math.ceil(k * (n - 1).bit_length() / 8))),
        (0.05, 1, 8 * k + math.ceil(k * (n - 1).bit_length() / 8)),
        (0.9, None, 8 * n),
    ):
        step = {"step": "top_k", "share": share, "direction": "down", "catch_up": catch_up}
        rounds = ran("fedavg", federation, step)
        assert np.diff([0, *rounds.values("bytes_down")]).tolist() == [4 * 8 * n, 4 * received, 4 * received]
        assert np.diff([0, *rounds.values("bytes_up")]).tolist() == [4 * 8 * n] * 3


def test_messages_up_are_never_missed() -> None:
    with refused("^run.updates.catch_up: 2.0 .*expected null, its default, with direction: up$"):
        UpdateStep.parse({"step": "sign", "catch_up": 2})


@pytest.mark.parametrize("name", SEVERAL)
def test_messages_that_differ_between_clients_are_not_compressed(name: str, federation: Federation) -> None:
    for direction in ("down", "both"):
        with refused(f"run.updates: 'sign' .*sign with direction: up and {name}, whose clients receive diff"):
            ran(name, federation, {"step": "sign", "direction": direction})


def test_top_k_entries_are_quantized(federation: Federation) -> None:
    """Steps in a row: entries, positions and bits of all of them count."""
    n = federation.model.size
    k = round(0.1 * n)
    steps = {"step": "top_k", "share": 0.1}, {"step": "qsgd", "levels": 7, "bucket": 100}
    up = np.diff([0, *ran("fedavg", federation, *steps).values("bytes_up")])
    assert up.tolist() == [4 * (math.ceil(k * 4 / 8) + math.ceil(n / 8) + 8 * math.ceil(n / 100))] * 3


def test_messages_to_clients_are_compressed_last() -> None:
    down, both = ({"step": "sign", "direction": way} for way in ("down", "both"))
    for steps, message in (
        ([down, {"step": "clip", "norm": 1.0}], "sign after clip, which would change what clients hold"),
        ([both, {"step": "privacy", "norm": 1.0, "noise": 0}], "sign after privacy, which would change"),
        ([down, {"step": "top_k", "share": 0.5}], "sign after top_k, which would change"),
    ):
        with refused(message):
            prepare_run("fedavg", quadratics(), updates=steps)
    prepare_run("fedavg", quadratics(), updates=[{"step": "clip", "norm": 1.0}, down, {"step": "secure"}])


@pytest.mark.parametrize(
    ("participation", "sampling", "messages"),
    [(0.01, "uniform", 8), (0.19, "uniform", 8), (0.3, "uniform", 4), (0.5, "bernoulli", 2)],
)
def test_messages_that_were_missed_follow_the_size_of_cohorts(
    participation: float, sampling: str, messages: float
) -> None:
    step = {"step": "sign", "direction": "down"}
    chosen = {"participation": participation, "sampling": sampling}
    made = prepare_run("fedavg", quadratics([(1, 0)] * 8, (4,) * 8), updates=[step], **chosen)
    assert made.path.steps[0].catch_up == messages


@dataclass(frozen=True)
class Models(ServerState):
    models: Tensor


class OneEach(Method):
    """Every client has a model at the server, which it alone receives, and sends it back."""

    name = "one_each"
    serves = "personal"
    gathers = True

    def setup(self, model: Any, initial: Any) -> Models:
        return Models(torch.stack([initial(0) * 0 + k for k in range(8)]))

    def broadcast(self, now: Any, server: Models, client: int) -> dict[str, Tensor]:
        return {"model": server.models[client]}

    def local(self, client: Any) -> Update:
        return client.update(model=client.received["model"])

    def aggregate(self, now: Any, server: Models, cohort: Any) -> Any:
        models = server.models.clone()
        models[cohort.ids] = cohort.stack("model")
        return Models(models), {}

    def model_for(self, client: Any) -> Tensor:
        return client.received["model"]


def test_the_message_to_a_cohort_of_one_may_be_its_own() -> None:
    step = {"step": "top_k", "share": 0.1, "direction": "down"}
    small = {"participation": 0.15, "sampling": "bernoulli", "rounds": 6, "seed": 1}
    ran = run(OneEach(), quadratics([(1, 0)] * 8, (4,) * 8), updates=[step], **small)
    assert 1 in [len(report.cohort) for report in ran.rounds]
    assert ran.servers[-1]["models"].flatten().tolist() == list(range(8))
