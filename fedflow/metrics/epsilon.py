"""Epsilon of a Gaussian mechanism that runs once per round, computed by dp-accounting.

Sources: accountants of Google's dp-accounting. PLD: Doroshenko et al., "Connect the Dots: Tighter Discrete
Approximations of Privacy Loss Distributions", PETS 2022; without sampling, its limit in closed form: Balle,
Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018. RDP: Mironov, "Renyi
Differential Privacy", CSF 2017; with Poisson sampling: Mironov, Talwar, Zhang, "Renyi Differential Privacy of
the Sampled Gaussian Mechanism", arXiv 1908.10530; with cohorts of fixed size: Wang, Balle,
Kasiviswanathan, "Subsampled Renyi Differential Privacy and Analytical Moments Accountant", AISTATS 2019.
"""

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedflow.project.distribution import require

ACCOUNTANTS = ("pld", "rdp")
LEAST = 0.1  # of the noise that RDP is asked for: below, epsilon is far above 100


@dataclass(frozen=True)
class Mechanism:
    """Noise on the sum of the vectors of a cohort; every vector has norm at most 1.

    ``sampling`` hides who is in a cohort: each of the ``clients`` (N) with probability ``cohort`` / N
    ("poisson"), or ``cohort`` of them ("fixed"); without it, everyone may know. ``sensitivity`` is the
    largest change of the sum between neighbors: 1 if neighbors differ in the presence of a client, 2 if a
    client's vector is replaced.
    """

    accountant: str
    delta: float
    clients: int
    cohort: float
    sampling: str = ""
    sensitivity: float = 1.0

    @property
    def alone(self) -> float:
        """The chance per round that a client is in the cohort because nobody else is, as in a redrawn one."""
        rate, empty = self.cohort / self.clients, (1 - self.cohort / self.clients) ** self.clients
        return rate * empty / (1 - rate) / (1 - empty) if self.sampling == "poisson" else 0.0

    def left(self, rounds: int) -> float:
        """The part of delta that the noise of so many rounds may take."""
        return self.delta - rounds * self.alone

    def epsilon(self, noise: float, rounds: int) -> float:
        """Epsilon after ``rounds`` with the standard deviation ``noise``."""
        return _epsilon(self, noise, rounds)

    def noise(self, epsilon: float, rounds: int) -> float:
        """The standard deviation whose epsilon after ``rounds`` is at most, and nearly, ``epsilon``."""
        return _noise(self, epsilon, rounds)


@cache
def library() -> Any:
    """Return dp-accounting; raise `FedflowError` where it is not installed."""
    require("run.updates: privacy", "dp_accounting", part="privacy")
    import dp_accounting

    logging.getLogger("absl").setLevel(logging.ERROR)  # it lists orders of RDP that do not converge
    return dp_accounting


@cache
def _epsilon(of: Mechanism, noise: float, rounds: int) -> float:
    dp, left = library(), of.left(rounds)
    if of.accountant == "rdp":
        accountant = _rdp(of, noise)
        epsilon, _ = dp.rdp.compute_epsilon(accountant.orders, rounds * accountant.rdp, left)
        return float(epsilon)
    if not of.sampling:
        return float(dp.get_epsilon_gaussian(noise / of.sensitivity / rounds**0.5, left))
    return float(_pld(of, noise).self_compose(rounds).get_epsilon_for_delta(left))


@cache
def _noise(of: Mechanism, epsilon: float, rounds: int) -> float:
    dp, left = library(), of.left(rounds)
    if of.accountant == "pld" and not of.sampling:
        return float(dp.get_sigma_gaussian(epsilon, left)) * of.sensitivity * rounds**0.5
    if of.accountant == "pld":
        more = _noise(_by_rdp(of), epsilon, rounds)  # which the tighter PLD does not need
        make, bracket = dp.pld.PLDAccountant, dp.ExplicitBracketInterval(more / 2, more)
    else:
        make, bracket = (lambda: _accountant(of)), dp.LowerEndpointAndGuess(LEAST, 1)

    def events(noise: float) -> Any:
        return dp.SelfComposedDpEvent(_event(of, noise), rounds)

    return float(dp.calibrate_dp_mechanism(make, events, epsilon, left, bracket, tol=1e-4))


def _by_rdp(of: Mechanism) -> Mechanism:
    return Mechanism("rdp", of.delta, of.clients, of.cohort, of.sampling, of.sensitivity)


def _event(of: Mechanism, noise: float) -> Any:
    """One round."""
    dp = library()
    event = dp.GaussianDpEvent(noise / of.sensitivity)
    if of.sampling == "fixed":
        return dp.SampledWithoutReplacementDpEvent(of.clients, int(of.cohort), event)
    return dp.PoissonSampledDpEvent(of.cohort / of.clients, event) if of.sampling else event


def _accountant(of: Mechanism) -> Any:
    dp = library()
    neighbors = dp.NeighboringRelation
    fixed = of.sampling == "fixed"
    relation = neighbors.REPLACE_ONE if fixed else neighbors.ADD_OR_REMOVE_ONE
    return dp.rdp.RdpAccountant(neighboring_relation=relation)


@cache
def _rdp(of: Mechanism, noise: float) -> Any:
    return _accountant(of).compose(_event(of, noise))


@cache
def _pld(of: Mechanism, noise: float) -> Any:
    """The privacy loss distribution of one round with Poisson sampling."""
    of_gaussian = library().pld.privacy_loss_distribution.from_gaussian_mechanism
    return of_gaussian(noise, of.sensitivity, sampling_prob=of.cohort / of.clients)
