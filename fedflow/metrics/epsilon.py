"""Epsilon of a Gaussian mechanism that runs once per round, computed by dp-accounting.

Sources: accountants of Google's dp-accounting. PLD: Doroshenko et al., "Connect the Dots: Tighter Discrete
Approximations of Privacy Loss Distributions", PETS 2022; without sampling, its limit in closed form: Balle,
Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018. RDP: Mironov, "Renyi
Differential Privacy", CSF 2017; with Poisson sampling: Mironov, Talwar, Zhang, "Renyi Differential Privacy of
the Sampled Gaussian Mechanism", arXiv 1908.10530; with cohorts of fixed size: Wang, Balle,
Kasiviswanathan, "Subsampled Renyi Differential Privacy and Analytical Moments Accountant", AISTATS 2019.
"""

import logging
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fedflow.errors import BadInput
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
        """The chance per round that a client is alone in a cohort that was drawn again while empty."""
        rate, empty = self.cohort / self.clients, (1 - self.cohort / self.clients) ** self.clients
        return rate * empty / (1 - rate) / (1 - empty) if self.sampling == "poisson" else 0.0

    def left(self, rounds: int) -> float:
        """Return what redrawn cohorts leave of delta."""
        return self.delta - rounds * self.alone

    def epsilon(self, noise: float, rounds: int) -> float:
        """Return epsilon after ``rounds`` with the standard deviation ``noise``."""
        return _epsilon(self, noise, rounds)

    def noise(self, epsilon: float, rounds: int) -> float:
        """Return the standard deviation whose epsilon after ``rounds`` is just below ``epsilon``."""
        return _noise(self, epsilon, rounds)


@cache
def library() -> Any:
    """Return dp-accounting; raise `FedflowError` where it is not installed."""
    require("run.updates: privacy", "dp_accounting", part="privacy")
    import dp_accounting

    logging.getLogger("absl").setLevel(logging.ERROR)  # it lists orders of RDP that do not converge
    return dp_accounting


@cache
def _epsilon(mechanism: Mechanism, noise: float, rounds: int) -> float:
    dp, left = library(), mechanism.left(rounds)
    if mechanism.accountant == "rdp":
        accountant = _rdp(mechanism, noise)
        epsilon, _ = dp.rdp.compute_epsilon(accountant.orders, rounds * accountant.rdp, left)
        return float(epsilon)
    if not mechanism.sampling:
        return float(dp.get_epsilon_gaussian(noise / mechanism.sensitivity / rounds**0.5, left))
    return float(_pld(mechanism, noise).self_compose(rounds).get_epsilon_for_delta(left))


@cache
def _noise(mechanism: Mechanism, epsilon: float, rounds: int) -> float:
    dp, left = library(), mechanism.left(rounds)
    if mechanism.accountant == "pld" and not mechanism.sampling:
        return float(dp.get_sigma_gaussian(epsilon, left)) * mechanism.sensitivity * rounds**0.5
    if mechanism.accountant == "pld":
        more = replace(mechanism, accountant="rdp").noise(epsilon, rounds)  # than the tighter PLD needs
        make, bracket = dp.pld.PLDAccountant, dp.ExplicitBracketInterval(more / 2, more)
    else:
        make, bracket = (lambda: _accountant(mechanism)), dp.LowerEndpointAndGuess(LEAST, 1)

    def events(noise: float) -> Any:
        return dp.SelfComposedDpEvent(_event(mechanism, noise), rounds)

    try:
        return float(dp.calibrate_dp_mechanism(make, events, epsilon, left, bracket, tol=1e-4))
    except (ValueError, dp.mechanism_calibration.NoBracketIntervalFoundError) as error:
        accepted = f"a number from 0.02 to 100, for which {mechanism.accountant} finds a noise"
        raise BadInput("run.updates.epsilon", epsilon, accepted) from error


def _event(mechanism: Mechanism, noise: float) -> Any:
    """One round."""
    dp = library()
    event = dp.GaussianDpEvent(noise / mechanism.sensitivity)
    if mechanism.sampling == "fixed":
        return dp.SampledWithoutReplacementDpEvent(mechanism.clients, int(mechanism.cohort), event)
    rate = mechanism.cohort / mechanism.clients
    return dp.PoissonSampledDpEvent(rate, event) if mechanism.sampling else event


def _accountant(mechanism: Mechanism) -> Any:
    dp = library()
    neighbors = dp.NeighboringRelation
    fixed = mechanism.sampling == "fixed"
    relation = neighbors.REPLACE_ONE if fixed else neighbors.ADD_OR_REMOVE_ONE
    return dp.rdp.RdpAccountant(neighboring_relation=relation)


@cache
def _rdp(mechanism: Mechanism, noise: float) -> Any:
    return _accountant(mechanism).compose(_event(mechanism, noise))


@cache
def _pld(mechanism: Mechanism, noise: float) -> Any:
    """The privacy loss distribution of one round with Poisson sampling."""
    of_gaussian = library().pld.privacy_loss_distribution.from_gaussian_mechanism
    return of_gaussian(noise, mechanism.sensitivity, sampling_prob=mechanism.cohort / mechanism.clients)
