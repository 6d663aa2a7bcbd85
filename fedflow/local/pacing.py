"""Pacing: the number of N sorted samples (or clients) that are in use at step t of T.

Source: Vahidian et al., "When Do Curricula Work in Federated Learning?", ICCV 2023, Table 2.1 of the thesis;
its printed "N - b" is N (1 - b), as in the authors' code, which alone has the logarithmic family.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from fedflow.errors import BadInput
from fedflow.local.extensions.extension import Reads
from fedflow.settings import Settings, option

EXPERT = "expert"  # the score by losses of a central network, and the name of this input of training

FAMILIES: dict[str, Callable[[float], float]] = {  # share of the rest that is in use at t = x a T, 0 <= x < 1
    "linear": lambda x: x,
    "step": lambda x: 0.0,
    "root": math.sqrt,
    "quadratic": lambda x: x * x,
    "exponential": lambda x: math.expm1(10 * x) / math.expm1(10),
    "log": lambda x: 1 + 0.1 * math.log(x + math.exp(-10)),
}


class Pacing(Settings):
    """Order and pace of a growing prefix of sorted samples or clients."""

    order: str = option(
        "curriculum",
        "easy first, hard first (anti), one random order, or all from the start (vanilla)",
        choices=("curriculum", "anti", "random", "vanilla"),
    )
    pacing: str = option("linear", "how the prefix grows", choices=tuple(FAMILIES))
    a: float = option(
        0.8, "share of the steps after which all are in use", symbol="a", ge=0, le=1, grid=(0.1, 0.5, 0.8)
    )
    b: float = option(
        0.2,
        "share that is in use at the first step",
        symbol="b",
        ge=0,
        le=1,
        grid=(0.0025, 0.1, 0.2, 0.5, 0.8),
    )

    @property
    def whole(self) -> bool:
        """True if all are in use from the first step."""
        return self.order == "vanilla" or self.a == 0 or self.b == 1

    @property
    def scores(self) -> bool:
        """True if a score is needed: neither the order is random nor all are in use."""
        return not self.whole and self.order != "random"

    def size(self, t: int, steps: int, n: int) -> int:
        """The prefix g(t), 1 to ``n``, at step ``t`` of ``steps``, from 0; n from t = a ``steps`` on."""
        end = self.a * steps
        if self.whole or t >= end - 1e-9:
            return n
        share = self.b + (1 - self.b) * FAMILIES[self.pacing](t / end)
        return min(n, max(1, math.floor(n * share + 1e-9)))  # 0.29 * 100 is a little less than 29


def read_expert(pacing: Any) -> tuple[Reads, ...]:
    """The expert of a curriculum, of samples or of clients, if any."""
    if pacing.expert is None:
        return ()
    return (Reads(EXPERT, f"{pacing.section}.expert", pacing.expert, losses=True, needed=pacing.scores),)


def need_expert(pacing: Any, inputs: Mapping[str, Any]) -> None:
    """Raise `BadInput` if a curriculum, of samples or of clients, has no losses to sort by."""
    if pacing.scores and pacing.score == EXPERT and EXPERT not in inputs:
        accepted = "a network of `central` whose losses this federation has"
        raise BadInput(f"{pacing.section}.expert", pacing.expert, accepted)
