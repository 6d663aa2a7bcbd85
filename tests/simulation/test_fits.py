"""The trial of a network before the first round, and losses by the kind of the targets."""

import cProfile
import random
from collections.abc import Callable
from pstats import Stats
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from support import consecutive, refused, run
from torch import Tensor, nn
from torch.nn import functional

import fedflow as ff
from fedflow.data import Examples
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation
from fedflow.simulation.fits import need_fit

X = torch.from_numpy(np.random.default_rng(0).normal(size=(40, 6))).float()
LABELS = (X[:, 0] > 0).long()


class Ends(nn.Module):
    """A linear layer to ``k`` outputs, then any function."""

    def __init__(self, end: Callable[[Tensor], Any], k: int = 2) -> None:
        super().__init__()
        self.layer, self.end = nn.Linear(6, k), end

    def forward(self, x: Tensor) -> Any:
        return self.end(self.layer(x))


class Scored(Ends):
    def __init__(self) -> None:
        super().__init__(lambda o: o)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, y)


class Counting(Ends):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__(lambda o: o)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls.add_(1)
        return self.layer(x)


class Output(dict):
    logits = None


def fit(network: nn.Module, y: Tensor) -> None:
    need_fit(FlatModel(lambda: network), Examples(X, y), type(network).__name__)


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (lambda o: o.softmax(-1), "probabilities, and the loss expects logits; remove the last softmax"),
        (lambda o: o.sigmoid(), "probabilities, .* remove the last sigmoid"),
        (lambda o: (o, o), r"forward returns tuple, .* logits \[n, classes\]; .* self.network\(x\)\[0\]"),
        (lambda o: Output(), r"forward returns Output, .* self.network\(x\).logits"),
        (lambda o: None, "forward returns NoneType"),
        (lambda o: o.half(), "forward returns float16, and must return float32"),
        (lambda o: o.argmax(-1), "forward returns int64"),
        (lambda o: o.detach(), "do not depend on the parameters"),
        (lambda o: o * torch.nan, "not finite"),
        (lambda o: o[:, :1], r"the network gives \[n, 1\] for 2 classes"),
        (lambda o: o[:, 0], r"the network gives \[n\], and labels need logits"),
        (lambda o: o.mean(), r"forward returns \[\] for 2 samples"),
        (lambda o: o * {"y": 0}["x"], "KeyError: has no 'x'"),
    ],
)
def test_what_forward_returns_is_named(end: Callable[[Tensor], Any], message: str) -> None:
    with refused(rf"^model.name: 'Ends' .* float32 inputs \[6\] and int64 targets \[\] \(.*{message}"):
        fit(Ends(end), LABELS)


@pytest.mark.parametrize(
    ("network", "y", "message"),
    [
        (nn.Linear(5, 2), LABELS, "RuntimeError: .* shapes cannot be multiplied"),
        (nn.Linear(6, 3), X[:, :2], r"the network gives \[n, 3\] for targets \[n, 2\]"),
        (nn.Linear(6, 2), X[:, 0], r"the network gives \[n, 2\] for targets \[n\]"),
        (nn.Linear(6, 2), LABELS[:, None].expand(-1, 2), r"targets \[n, 2\] are several labels"),
        (Scored(), LABELS, r"losses\(outputs, y\) gives \[\]"),
        (Counting(), LABELS, "calls changes in training"),
    ],
)
def test_what_does_not_fit_is_named(network: nn.Module, y: Tensor, message: str) -> None:
    with refused(message):
        fit(network, y)


OWN = torch.Generator().manual_seed(0)
DRAWS = "it draws random numbers in training outside these layers: Dropout,"
AGAIN = "its loss changes when it is called again: it draws random numbers, or counts calls"


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (functional.dropout, DRAWS),
        (lambda o: functional.dropout(o, 1e-9), DRAWS),
        (lambda o: o + 1e-6 * torch.randn_like(o), DRAWS),
        (lambda o: o * torch.rand(1).item(), DRAWS),
        (lambda o: o[:, torch.randperm(2)], DRAWS),
        (lambda o: functional.gumbel_softmax(o) + o, DRAWS),
        (lambda o: o * (random.random() < 0.5) + o, DRAWS),
        (lambda o: o + np.random.normal(), DRAWS),  # noqa: NPY002
        (lambda o: o + torch.randn(2, generator=OWN), AGAIN),
        (lambda o: o * np.random.default_rng().normal(), AGAIN),
    ],
)
def test_a_module_that_draws_random_numbers_is_refused(end: Callable[[Tensor], Any], message: str) -> None:
    with refused(message):
        fit(Ends(end), LABELS)


def test_random_numbers_of_other_threads_do_not_count() -> None:
    """Dask draws from Python's generator on a worker all the time."""

    def drawn(o: Tensor) -> Tensor:
        thread = Thread(target=random.random)
        thread.start()
        thread.join()
        return o

    fit(Ends(drawn), LABELS)
    with refused(DRAWS):
        fit(Ends(lambda o: drawn(o) * (random.uniform(0, 1) < 2)), LABELS)


def test_a_compiled_module_draws_nothing() -> None:
    fit(torch.compile(nn.Linear(6, 2), backend="eager"), LABELS)


def test_another_thread_that_draws_does_not_spoil_a_named_network() -> None:
    ended = Event()

    def draw() -> None:
        while not ended.is_set():
            np.random.rand(10)  # noqa: NPY002

    thread = Thread(target=draw)
    thread.start()
    try:
        fit(build("mlp", (6,), 2), LABELS)
    finally:
        ended.set()
        thread.join()


def test_a_profiled_run_is_checked_and_profiled_further() -> None:
    with cProfile.Profile() as profile:
        fit(nn.Linear(6, 2), LABELS)
        "after".upper()
        with refused(DRAWS):
            fit(Ends(lambda o: o * (random.random() < 2)), LABELS)
    names = {name for _, _, name in Stats(profile).stats}
    assert any("upper" in name for name in names)


def test_layers_of_dropout_and_functions_without_it_are_accepted() -> None:
    fit(nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 2)), LABELS)
    fit(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 2)), LABELS)
    fit(Ends(lambda o: functional.dropout(o, training=False)), LABELS)


def test_functional_dropout_is_refused_before_a_run() -> None:
    data = ff.dataset(X[:30], LABELS[:30], X[30:], LABELS[30:])
    for network in (Ends(functional.dropout), lambda: Ends(functional.dropout)):
        with refused(f"^model.name: 'Ends' .*{DRAWS}"):
            ff.run(data, ff.iid(clients=2), model=network, rounds=1, progress=False)


def test_what_is_the_same_with_cross_entropy_is_accepted() -> None:
    fit(Ends(lambda o: o.log_softmax(-1)), LABELS)
    fit(Ends(lambda o: o.relu()), LABELS)
    fit(Ends(lambda o: o.squeeze()), LABELS)
    with pytest.warns(UserWarning, match="the network has 3 outputs for 2 classes"):
        fit(nn.Linear(6, 3), LABELS)


@pytest.mark.parametrize(
    ("network", "y"),
    [
        (lambda: nn.Linear(6, 1), X[:, 0]),
        (lambda: Ends(torch.squeeze, 1), X[:, 0]),
        (lambda: nn.Linear(6, 1), X[:, :1]),
        (lambda: nn.Linear(6, 3), X[:, :3]),
    ],
)
def test_real_targets_have_squared_errors(network: Callable[[], nn.Module], y: Tensor) -> None:
    """Of one target or several, also with a client of a single sample, in the loop and in cohorts."""
    model, examples = FlatModel(network), Examples(X, y)
    need_fit(model, examples, "own")
    w = model.init(0)
    outputs = model.outputs(w, X)
    expected = (outputs.reshape(y.shape) - y).square().reshape(40, -1).mean(1)
    torch.testing.assert_close(model.losses(outputs, y), expected)
    torch.testing.assert_close(model.loss(outputs, y), expected.mean())
    assert model.hits(outputs, y).shape == (40,) and model.hits(outputs, y).isnan().all()
    federation = Federation(model, examples, examples, consecutive((1, 19, 20)))
    settings: dict[str, Any] = {"training": {"batch_size": 6, "epochs": 4, "lr": 0.05}, "rounds": 4}
    loop, vmap = (run("fedavg", federation, cohort=cohort, **settings) for cohort in ("loop", "vmap"))
    torch.testing.assert_close(loop.servers[-1], vmap.servers[-1], rtol=0, atol=1e-5)
    metrics = loop.outcome().metrics
    assert metrics["loss"] < 0.2 * float(expected.mean()) and metrics["local_accuracy"] is None
