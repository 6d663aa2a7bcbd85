"""`privacy`: noise on clipped updates that is what the accountant assumes."""

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import Ran, alike, images, prepare_run, refused, run, same, suited
from torch import Tensor

from fedflow.data import Dataset
from fedflow.errors import FedflowError
from fedflow.metrics import epsilon
from fedflow.metrics.epsilon import Mechanism
from fedflow.simulation.federation import Federation
from fedflow.simulation.updates.privacy import Private
from fedflow.simulation.updates.step import Incoming, Sent

ALL: dict[str, Any] = {"participation": 1, "rounds": 3, "fine_tune": False}
NONE = {"step": "privacy", "norm": 1e9, "noise": 0}
NOISY = {"step": "privacy", "norm": 0.1, "noise": 1.0, "delta": 1e-5}
LOCAL = NOISY | {"mode": "local"}
DROPPING = {"epochs": 2, "batch_size": 4, "stragglers": 0.5, "drop_stragglers": True}
UNIFORM = {"weighting": "uniform"}
SETTINGS = [(0.02, 0.8, 100), (0.1, 1.0, 50), (1.0, 3.0, 20)]  # sampling, noise, rounds; delta 1e-5


@pytest.fixture
def dp() -> Any:
    return pytest.importorskip("dp_accounting")


@pytest.fixture
def federation(digits: Dataset) -> Federation:
    return images(digits, dtype=torch.float64)


def ran(name: str, federation: Federation, *updates: Any, **more: Any) -> Ran:
    hyper = {} if name == "scaffold" else {"hyper": UNIFORM}
    return run(name, suited(name, federation), updates=[*updates], **ALL | hyper | more)


def of_sampling(accountant: str, rate: float) -> Mechanism:
    return Mechanism(accountant, 1e-5, 10_000, rate * 10_000, "poisson" if rate < 1 else "")


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto", "ifca", "pacfl"])
@pytest.mark.filterwarnings("ignore:privacy with")
def test_without_noise_and_clipping_nothing_changes(name: str, federation: Federation) -> None:
    plain = ran(name, federation)
    for mode in ("central", "local"):
        if (name, mode) != ("ifca", "local"):
            private = ran(name, federation, NONE | {"mode": mode})
            assert same(plain.state(), private.state())
            assert plain.values("bytes_up") == private.values("bytes_up")
    assert "update/privacy.epsilon" not in private.rounds[-1].values


@pytest.mark.parametrize("step", [NOISY | {"quantile": 0.5, "count_noise": 2}, LOCAL])
def test_noise_is_the_same_in_cohorts_with_any_workers_and_resumed(
    step: dict[str, Any], federation: Federation, dp: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start = partial(prepare_run, "scaffold", federation, updates=[step], **ALL)
    loop = alike(start, tmp_path, monkeypatch)
    assert not same(loop.state(), ran("scaffold", federation, step | {"noise": 0}).state())


@pytest.mark.filterwarnings("ignore:privacy with")
def test_epsilon_by_round_is_what_dp_accounting_says(federation: Federation, dp: Any) -> None:
    step = NOISY | {"noise": 4.0}
    spent = ran("fedavg", federation, step).values("update/privacy.epsilon")
    by_hand = [dp.get_epsilon_gaussian(4 / math.sqrt(t), 1e-5) for t in (1, 2, 3)]
    assert spent == pytest.approx(by_hand)
    assert spent == ran("ifca", federation, step).values("update/privacy.epsilon")
    gaussian, relation = dp.GaussianDpEvent(4.0), dp.NeighboringRelation.REPLACE_ONE
    for t, got in enumerate(spent, 1):
        assert dp.pld.PLDAccountant().compose(gaussian, t).get_epsilon(1e-5) == pytest.approx(got, rel=1e-4)
    often = {"participation": 0.9, "sampling": "bernoulli"}  # 7.2 of 8 clients, redrawn if there are none
    sampled = ran("fedavg", federation, step, **often).values("update/privacy.epsilon")
    event, empty = dp.PoissonSampledDpEvent(0.9, gaussian), 0.1**8
    for t, got in enumerate(sampled, 1):
        delta = 1e-5 - t * 0.9 * 0.1**7 / (1 - empty)
        assert dp.pld.PLDAccountant().compose(event, t).get_epsilon(delta) == pytest.approx(got)
    half = {"participation": 0.5}
    fixed = ran("fedavg", federation, step | {"accountant": "rdp"}, **half).values("update/privacy.epsilon")
    event = dp.SampledWithoutReplacementDpEvent(8, 4, dp.GaussianDpEvent(2.0))  # sensitivity 2
    accountant = dp.rdp.RdpAccountant(neighboring_relation=relation)
    assert fixed[-1] == pytest.approx(accountant.compose(event, 3).get_epsilon(1e-5))
    local = ran("fedavg", federation, step | {"mode": "local"}, **half).values("update/privacy.epsilon")
    assert local[-1] == pytest.approx(dp.get_epsilon_gaussian(2 / math.sqrt(3), 1e-5))


def test_epsilon_agrees_with_other_libraries(dp: Any) -> None:
    """Numbers of pfl-research 0.6.0 and Opacus 1.6.0 for `SETTINGS`, computed by

    from pfl.privacy.privacy_accountant import PLDPrivacyAccountant, RDPPrivacyAccountant
    PLDPrivacyAccountant(num_compositions=T, sampling_probability=q, mechanism="gaussian", delta=1e-5,
        noise_parameter=z).epsilon  # and RDPPrivacyAccountant

    from opacus.accountants import RDPAccountant
    accountant = RDPAccountant(); accountant.history = [(z, q, T)]; accountant.get_epsilon(1e-5)
    """
    pfl_pld = (2.620243126134253, 5.1482625932726, 6.9992267537147335)
    pfl_rdp = (3.2761985287977535, 5.88542727658131, 7.53230607327611)
    opacus_rdp = (3.2760126237752076, 5.88097893218889, 7.53230607327611)
    for (q, z, rounds), pld, rdp, opacus in zip(SETTINGS, pfl_pld, pfl_rdp, opacus_rdp, strict=True):
        assert of_sampling("pld", q).epsilon(z, rounds) == pytest.approx(pld, rel=1e-5)
        assert of_sampling("rdp", q).epsilon(z, rounds) == pytest.approx(rdp, rel=1e-6)
        assert of_sampling("rdp", q).epsilon(z, rounds) == pytest.approx(opacus, rel=1e-3)


def test_a_target_finds_the_noise(federation: Federation, dp: Any) -> None:
    """The first is `PLDPrivacyAccountant(epsilon=1, num_compositions=1000, ...).noise_parameter` of pfl."""
    assert of_sampling("pld", 0.02).noise(1.0, 1000) == pytest.approx(2.5119781494140625, rel=1e-3)
    assert 3.99 < of_sampling("rdp", 0.02).epsilon(of_sampling("rdp", 0.02).noise(4.0, 20), 20) <= 4
    target = {"step": "privacy", "norm": 0.1, "epsilon": 8, "delta": 1e-5}
    aimed = ran("fedavg", federation, target)
    (noise,) = {*aimed.values("update/privacy.noise")}
    assert noise == pytest.approx(dp.get_sigma_gaussian(8, 1e-5) * math.sqrt(3))
    assert aimed.values("update/privacy.epsilon")[-1] == pytest.approx(8)
    same_noise = ran("fedavg", federation, NOISY | {"noise": noise})
    assert same(aimed.state(), same_noise.state())
    points = ran("fedavg", federation, target, rounds=30).values("update/privacy.epsilon")
    assert len({*points}) == 15 and points == sorted(points) and points[-1] == pytest.approx(8)


def noise_on_a_mean(step: Private, clients: int, members: int) -> Tensor:
    """The noise that `after` adds to the mean of some clients of a cohort."""

    def rng(purpose: str) -> np.random.Generator:
        return np.random.default_rng([clients, members])

    state = {"norm": torch.tensor(0.5)}
    got = Incoming("w", None, [*range(members)], np.ones(members), 1, state, rng, [*range(clients)])
    return step.after(got, torch.zeros(20_000, dtype=torch.float64))


def test_the_noise_of_a_mean_is_what_the_accountant_assumes(federation: Federation, dp: Any) -> None:
    """A sum over a cohort has noise z C; 20,000 entries tell its deviation to 0.5 % (one sigma)."""
    start = prepare_run("fedavg", federation).state.server.tensors()["model"]
    tiny = {"step": "privacy", "norm": 1e-6, "noise": 1e6, "delta": 1e-5}
    noise = ran("fedavg", federation, tiny, rounds=1).state()["server/model"] - start  # 8 clients
    size = noise.numel()
    assert size > 1000 and float(noise.std()) == pytest.approx(1 / 8, rel=4 / math.sqrt(2 * size))
    local = ran("fedavg", federation, tiny | {"mode": "local"}, rounds=1).state()["server/model"] - start
    assert float(local.std()) == pytest.approx(1 / math.sqrt(8), rel=4 / math.sqrt(2 * size))

    def private(mechanism: Mechanism, **more: Any) -> Private:
        values = {"norm": 0.5, "noise": 3.0, "delta": 1e-5, "count_noise": 2.0} | more
        return Private(step="privacy", mechanism=mechanism, **values)

    everyone, poisson = Mechanism("pld", 1e-5, 10, 10), Mechanism("pld", 1e-5, 40, 10, "poisson")
    for step, clients, members, wanted in (
        (private(everyone), 10, 10, 1.5 / 10),
        (private(everyone), 10, 4, 1.5 / 4),  # of a cluster
        (private(poisson), 7, 7, 1.5 / 10),  # the expected size counts
        (private(everyone, quantile=0.5), 10, 10, 1.5 / math.sqrt(1 - (3 / 4) ** 2) / 10),
    ):
        assert float(noise_on_a_mean(step, clients, members).std()) == pytest.approx(wanted, rel=0.02)


def test_a_cohort_of_random_size_is_divided_by_the_expected_size(federation: Federation) -> None:
    start = prepare_run("fedavg", federation).state.server.tensors()["model"]
    bernoulli = {"participation": 0.6, "sampling": "bernoulli", "rounds": 1}
    plain = ran("fedavg", federation, **bernoulli)
    m = len(plain.rounds[0].cohort)
    scaled = ran("fedavg", federation, NONE, **bernoulli).state()["server/model"]
    wanted = start + m / 4.8 * (plain.state()["server/model"] - start)
    assert m != 4.8
    torch.testing.assert_close(scaled, wanted, rtol=0, atol=1e-12)


def test_clusters_have_noise_of_their_own(federation: Federation, dp: Any) -> None:
    """The same noise in two means would show their difference."""
    tiny = {"step": "privacy", "norm": 1e-6, "noise": 1e6, "delta": 1e-5}
    with pytest.warns(UserWarning, match="privacy with pacfl: the guarantee does not cover the clusters of"):
        pacfl = ran("pacfl", federation, tiny, rounds=1, hyper=UNIFORM | {"clusters": 2})
    first, second = pacfl.state()["server/models"] - prepare_run("pacfl", federation).state.server.initial
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.1


def test_the_norm_converges_to_a_quantile(dp: Any) -> None:
    """Andrew et al. 2021: from below and above, if norms do not change; here they are 1 to 100.

    The rate is 0.2 and the noise on the count m / 20, as there.
    """
    norms = np.arange(1, 101)
    for quantile, first in ((0.5, 0.1), (0.9, 200.0)):
        values = {"norm": first, "noise": 1.0, "delta": 1e-5, "quantile": quantile, "count_noise": 5.0}
        step = Private(step="privacy", mechanism=Mechanism("pld", 1e-5, 100, 100), **values)
        state, seen = dict(step.start()), []
        for t in range(1, 121):
            clipped = norms > float(state["norm"])
            sent = [Sent(k, 0, 1.0, {"clipped": float(c)}) for k, c in enumerate(clipped)]
            now: Any = SimpleNamespace(t=t, rounds=120, rng=np.random.default_rng(t))
            new, numbers = step.learn(now, state, sent)
            assert numbers["norm"] == float(state["norm"])
            state = dict(new)
            seen.append(float(state["norm"]))
        assert np.mean(seen[-40:]) == pytest.approx(100 * quantile, rel=0.05)


@pytest.mark.filterwarnings("ignore:privacy with")
def test_what_the_guarantee_cannot_cover_is_refused(federation: Federation, dp: Any) -> None:
    for name, more, message in (
        ("fedavg", {"hyper": {"weighting": "samples"}}, "^method.weighting: 'samples' .*uniform with"),
        ("subfedavg_un", {"hyper": {}}, "without subfedavg_un, whose clients send masks"),
        ("fednova", {}, "without fednova, whose server reads scalars of single clients"),
        ("cfl", {}, "without cfl, whose server reads vectors of single clients"),
        ("flt", {}, "without flt, whose server reads means of some clients"),
        ("fedbuff", {}, "without fedbuff, whose rounds do not have one cohort"),
        ("local", {"hyper": {}}, "with methods whose clients send vectors of real numbers"),
        ("aaggff_s", {"hyper": {}}, "without aaggff_s, which weights clients by n_k"),
        ("ifca", {"participation": 0.9}, "^run.participation: 0.9 .*1 with privacy, as ifca has groups"),
        ("fedavg", {"participation": 0.5}, "with run.sampling: bernoulli, or accountant: rdp"),
        ("fedavg", {"participation": 0.5, "sampling": "bernoulli"}, "^run.participation: 0.5 .*a larger"),
        (
            "scaffold",
            {"participation": 0.9, "sampling": "bernoulli"},
            "without scaffold, whose server reads who is in a cohort",
        ),
        ("fedavg", {"participation": 0.5, "sampling": "easy_first"}, "^run.sampling: 'easy_first'"),
        (
            "fedavg",
            {"participation": 0.9, "sampling": "bernoulli", "training": DROPPING},
            "^training.drop_stragglers: True .*false with privacy and run.sampling: bernoulli",
        ),
    ):
        with refused(message):
            ran(name, federation, NOISY, **more)
    with refused("without methods whose clients send cluster as scalars"):
        ran("ifca", federation, LOCAL)
    clip = {"step": "clip", "norm": 1}
    for steps, message in (
        ([NOISY, clip], "^run.updates: 'privacy' .*privacy after clip, with which its noise"),
        ([NOISY, NOISY], "privacy after privacy"),
    ):
        with refused(message):
            ran("fedavg", federation, *steps)
    ran("fedavg", federation, clip, NOISY, rounds=1)
    for change, message in (
        ({"noise": None}, r"^run.updates\[0\].noise: None .*or epsilon instead"),
        ({"epsilon": 8}, r"^run.updates\[0\].noise: 1.0 .*null where epsilon is given"),
        ({"delta": None}, r"^run.updates\[0\].delta: None .*or noise: 0"),
        ({"mode": "local", "quantile": 0.5}, r"^run.updates\[0\].quantile: 0.5 .*null with mode: local"),
        ({"norm_lr": 0.5}, r"^run.updates.*norm_lr: 0.5 .*expected 0.2, its default, without quantile"),
        (
            {"count_noise": 1},
            r"^run.updates.*count_noise: 1.0 .*expected null, its default, without quantile",
        ),
        ({"quantile": 0.5}, r"^run.updates.count_noise: 0.4 .*a number > 0.5, half of the noise"),
    ):
        with refused(message):
            ran("fedavg", federation, NOISY | change)


def test_a_client_that_fails_does_not_go_unseen_in_a_sampled_cohort(federation: Federation, dp: Any) -> None:
    federation.train.x[federation.partition.train(0)] = torch.nan
    often = {"participation": 0.9, "sampling": "bernoulli", "rounds": 9}
    with refused("a mean of model shows . of . clients in round"):
        ran("fedavg", federation, NOISY, **often)


def test_without_dp_accounting_one_line_says_what_to_install(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedflow.project.distribution.find_spec", lambda name: None)
    epsilon.library.cache_clear()
    with refused(r"run.updates: privacy needs dp_accounting, .*\[privacy\]", FedflowError):
        ran("fedavg", federation, NOISY)
    ran("fedavg", federation, NONE)
