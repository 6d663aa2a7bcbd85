"""Steps that change the inputs of clients, each in its own way, when the data are opened."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.after.feature_noise import FeatureNoise
from fedflow.partition.after.transforms import Transforms

Change = FeatureNoise | Transforms
STEPS: dict[str, type[Change]] = {  # fields of a partition, in their order
    "transforms": Transforms,
    "feature_noise": FeatureNoise,
}


def changes(params: dict[str, Any]) -> dict[str, Any]:
    """The settings of the steps of a partition that change inputs, and its seed; empty without such steps."""
    chosen = {name: params[name] for name in STEPS if params.get(name)}
    return chosen and chosen | {"seed": params["seed"]}


def steps(params: dict[str, Any]) -> list[Change]:
    """The steps of a partition that change inputs, in their order."""
    return [step.parse(params[name]) for name, step in STEPS.items() if params.get(name)]


def owned(
    change: Change,
    variants: np.ndarray,
    trained: Iterable[np.ndarray],
    selections: Iterable[np.ndarray],
    tested: Iterable[np.ndarray],
    samples: int,
    tests: int,
    held_out: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """The variant of every training sample [n] and test sample [t], -1 where no client has it.

    ``variants`` [N] has the variant of each client, whose rows are ``trained``, ``selections`` (or none) and
    ``tested``; these are rows of training samples if ``held_out``. Raises `BadInput` if clients of several
    variants share a sample.
    """
    of_train, of_test = np.full(samples, -1), np.full(tests, -1)
    shared = "null, because clients share training samples in this scheme"
    _claim(change, of_train, variants, trained, shared)
    _claim(change, of_train, variants, selections, shared)
    shared = "null without holdout, because clients share test samples"
    _claim(change, of_train if held_out else of_test, variants, tested, shared)
    return of_train, of_test


def _claim(
    change: Change, owner: np.ndarray, variants: np.ndarray, rows: Iterable[np.ndarray], accepted: str
) -> None:
    """Write each client's variant to its ``rows`` of ``owner``."""
    for variant, of_client in zip(variants, rows):
        if not np.isin(owner[of_client], (-1, variant)).all():
            raise BadInput(change.section, change.as_dict(), accepted)
        owner[of_client] = variant
