"""Secure aggregation: masks hide each update, cancel exactly in sums, and methods that look are refused."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support import SIZES, Ran, alike, images, prepare_run, refused, reports, run, same, suited
from torch import Tensor

from fedflow.data import Dataset
from fedflow.errors import FedflowError
from fedflow.local.client import Client, Update
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.simulation.federation import Federation
from fedflow.simulation.updates import STEPS, UpdateStep
from fedflow.simulation.updates.secure import Secure
from fedflow.simulation.updates.step import Arrived, Changed, Outgoing, register

HALF: dict[str, Any] = {"participation": 0.5, "rounds": 3, "fine_tune": False}
SECURE = {"step": "secure"}
GROUPED = SECURE | {"groups": True, "threshold": 1}
KINDS = {"fedavg": SECURE, "scaffold": SECURE, "ditto": SECURE, "fedcluster": SECURE, "ifca": GROUPED}


@pytest.fixture
def federation(digits: Dataset) -> Federation:
    return images(digits, dtype=torch.float64)


@pytest.fixture
def unmasked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Runs in which clients send the same whole numbers without masks."""

    def go(*args: Any, **settings: Any) -> Ran:
        with monkeypatch.context() as patch:
            patch.setattr(Secure, "_masks", lambda self, name, n, *about: np.zeros(n, np.int64))
            return run(*args, **settings)

    return go


@pytest.fixture
def steps() -> Iterator[None]:
    before = dict(STEPS)
    yield
    STEPS.clear()
    STEPS.update(before)


def outgoing(x: Tensor, client: int = 1, round: int = 1, weight: float = 2.0) -> Outgoing:
    """One update with the vector ``x`` of a client of three."""
    update = Update({"model": x[None]}, torch.tensor([weight]), torch.tensor([0]))
    draw = np.random.default_rng
    return Outgoing([client], round, update, [{}], [{}], {}, {}, lambda *key: draw(0), "secure", [0, 1, 4])


def test_a_masked_vector_looks_random() -> None:
    """Every bit is 1 in half of the entries, to six standard deviations, whatever the update."""
    n = 10_000
    for x in (torch.zeros(n), torch.full((n,), 3.7), torch.linspace(-100, 100, n)):
        sent = Secure().change(outgoing(x)).vectors["model"][0].numpy()
        ones = np.unpackbits(sent.view(np.uint8)).reshape(n, 64).mean(0)
        assert np.abs(ones - 0.5).max() < 6 * 0.5 / n**0.5
        assert abs(np.corrcoef(sent, np.arange(n))[0, 1]) < 6 / n**0.5
        for other in (outgoing(x, client=0), outgoing(x, round=2)):  # other masks
            assert (Secure().change(other).vectors["model"][0].numpy() == sent).mean() < 0.01


def test_a_masked_vector_is_the_whole_numbers_and_the_masks() -> None:
    x = torch.tensor([0.5, -1.25, 3.0])
    ring = Secure(bits=32, fraction=4)
    sent = [ring.change(outgoing(x, client)).vectors["model"][0] for client in (0, 1, 4)]
    assert all((v >= -(2**31)).all() and (v < 2**31).all() for v in sent)
    assert ((sum(sent) - 3 * torch.tensor([16, -40, 96])) % 2**32 == 0).all()  # weight 2, times 16
    assert not any((v == torch.tensor([16, -40, 96])).any() for v in sent)


@pytest.mark.parametrize("name", KINDS)
def test_masks_cancel_to_the_last_bit(
    name: str, federation: Federation, unmasked: Callable[..., Ran]
) -> None:
    """The mean of the whole numbers, which is close to the plain one."""
    given: dict[str, Any] = HALF | {"updates": [KINDS[name]]}
    masked, bare = run(name, federation, **given), unmasked(name, federation, **given)
    assert same(masked.state(), bare.state()) and reports(masked) == reports(bare)
    assert not any(report.failed for report in masked.rounds)
    torch.testing.assert_close(masked.state(), run(name, federation, **HALF).state(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("fraction", [8, 20, 32])
def test_the_mean_differs_by_what_is_rounded(federation: Federation, fraction: int) -> None:
    """At most half a step of every client's entries, over the sum of the weights."""
    once: dict[str, Any] = {"participation": 1, "rounds": 1}
    plain = run("fedavg", federation, **once).state()["server/model"]
    secure = run("fedavg", federation, updates=[SECURE | {"fraction": fraction}], **once).state()[
        "server/model"
    ]
    most = len(SIZES) / sum(SIZES) / 2 ** (fraction + 1)
    assert most / 8 < float((secure - plain).abs().max()) <= most + 1e-15


@pytest.mark.parametrize("name", ["scaffold", "fedcluster", "ifca"])  # two vectors, cycles, groups
def test_secure_runs_are_the_same_in_cohorts_with_any_workers_and_resumed(
    name: str, federation: Federation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start = partial(prepare_run, name, federation, updates=[KINDS[name]], **HALF)
    alike(start, tmp_path, monkeypatch, tolerance=1e-7)


class Troubled(FedAvg):
    """Clients 3 and 6 send NaN."""

    def local(self, client: Client) -> Update:
        update = super().local(client)
        fine = (client.samples != SIZES[3]) & (client.samples != SIZES[6])
        update.vectors["model"] = update.vectors["model"] / fine
        return update


class Late(UpdateStep):
    """Clients 0 and 5 fail after they have masked their updates."""

    def accepts(self, update: Update, received: Mapping[str, Tensor]) -> Tensor:
        lost = (update.weight == SIZES[0]) | (update.weight == SIZES[5])
        return ~lost | torch.tensor(update.vectors["model"].is_floating_point())


@pytest.mark.parametrize("cohort", ["loop", "vmap"])
def test_masks_of_clients_that_fail_are_removed(
    federation: Federation, unmasked: Callable[..., Ran], steps: None, cohort: str
) -> None:
    register("late", "late")(Late)
    given: dict[str, Any] = {"updates": [SECURE, {"step": "late"}], "rounds": 2, "cohort": cohort}
    masked = run(Troubled(), federation, **given)
    assert [sorted(report.failed) for report in masked.rounds] == [[0, 3, 5, 6]] * 2
    assert same(masked.state(), unmasked(Troubled(), federation, **given).state())

    class Spared(FedAvg):
        def plan(self, now: Any, server: Any, chances: Any, size: int) -> Any:
            return np.array([1, 2, 4, 7]), server

    spared = run(Spared(), federation, updates=[SECURE], rounds=2, cohort=cohort)
    assert same(masked.state(), spared.state())


def test_the_sum_needs_as_many_clients_as_the_threshold(federation: Federation) -> None:
    go: dict[str, Any] = {"rounds": 1, "participation": 0.5}
    assert not run("fedavg", federation, updates=[SECURE | {"threshold": 4}], **go).rounds[0].failed
    with refused("^round 1: 4 of 4 clients are in a sum, the threshold of secure is 5$", FedflowError):
        run("fedavg", federation, updates=[SECURE | {"threshold": 5}], **go)
    alone = {"clusters": 8, "random_assignment_rounds": 1}
    with refused("^round 1: 1 of 4 clients are in a sum, the threshold of secure is 2$", FedflowError):
        run("ifca", federation, alone, updates=[GROUPED | {"threshold": 2}], **go | {"rounds": 2})


@pytest.mark.parametrize(
    ("name", "why"),
    {
        "cfl": "without cfl, whose server needs every single update",
        "cc_fedadam": "without cc_fedadam, whose server takes updates of different rounds",
        "fedeff": "without fedeff, whose server reads answers of single clients in the onboarding",
        "fednova": "without fednova, whose server reads weights of single clients",
        "ifca": "without ifca, whose server learns groups, unless groups is true",
        "local": "without local, whose server takes no mean of updates",
        "subfedavg_un": "with methods whose clients send real numbers only, not mask",
    }.items(),
)
def test_a_method_that_looks_at_single_updates_is_refused(
    name: str, why: str, federation: Federation
) -> None:
    with refused(f"^run.updates: 'secure' is not accepted; expected secure {why}$"):
        run(name, suited(name, federation), updates=[SECURE], rounds=1)


def test_what_the_server_may_not_read(federation: Federation) -> None:
    class Curious(FedAvg):
        look: ClassVar[Callable[[Any], Any]]

        def local(self, client: Client) -> Update:
            return client.update(model=client.received["model"], scalars={"loss": client.samples.double()})

        def aggregate(self, now: Any, server: Any, cohort: Any) -> Any:
            type(self).look(cohort)
            return super().aggregate(now, server, cohort)

    for what, look in {
        "reads vectors of single clients": lambda cohort: cohort.stack("model"),
        "reads scalars of single clients": lambda cohort: cohort.scalars("loss"),
        "reads weights of single clients": lambda cohort: cohort.weights,
        "weights updates itself": lambda cohort: cohort.mean("model", weights=np.ones(8)),
    }.items():
        Curious.look = look
        with refused(f"expected secure without fedavg, whose server {what}$"):
            run(Curious(), federation, updates=[SECURE], rounds=1)
    with refused("expected secure without run.sampling: easy_first, for which the server reads losses"):
        run("fedavg", federation, updates=[SECURE], sampling="easy_first", rounds=1, participation=0.5)


def test_a_step_that_changes_masked_updates_is_found(federation: Federation, steps: None) -> None:
    class Negative(UpdateStep):
        def meet(self, got: Arrived) -> Any:
            return {name: [-rows[0], *rows[1:]] for name, rows in got.vectors.items()}

    class Halved(UpdateStep):
        def change(self, sent: Outgoing) -> Changed:
            return Changed({name: vector / 2 for name, vector in sent.update.vectors.items()})

    for name, cls in (("negative", Negative), ("halved", Halved)):
        register(name, name)(cls)
        with refused("expected secure as the last step that changes updates$"):
            run("fedavg", federation, updates=[SECURE, {"step": name}], rounds=1)
    first = run("fedavg", federation, updates=[{"step": "halved"}, SECURE], rounds=1)
    assert not same(first.state(), run("fedavg", federation, updates=[SECURE], rounds=1).state())


def test_numbers_that_could_overflow_stop_the_run(federation: Federation) -> None:
    with refused(
        r"'secure' .*expected more than 16 bits, or fewer .* \([0-9.]+ in model, at most 0.25 fits\)$"
    ):
        run("fedavg", federation, updates=[SECURE | {"bits": 16, "fraction": 13}], rounds=1)


@pytest.mark.parametrize("bits", [64, 40])
def test_every_entry_crosses_with_as_many_bits(federation: Federation, bits: int) -> None:
    steps = [{"step": "clip", "norm": 1}, SECURE | {"bits": bits, "fraction": 20}]
    ran = run("scaffold", federation, updates=steps, **HALF | {"rounds": 1})
    assert ran.values("bytes_up") == [4 * 2 * federation.model.size * bits // 8]
    assert ran.values("bytes_down") == run("scaffold", federation, **HALF | {"rounds": 1}).values(
        "bytes_down"
    )


def test_networks_in_single_precision_stay_so(digits: Dataset) -> None:
    federation = images(digits)
    plain, secure = (run("scaffold", federation, updates=of, **HALF).state() for of in ([], [SECURE]))
    torch.testing.assert_close(secure, plain, rtol=0, atol=1e-6)  # also its type
