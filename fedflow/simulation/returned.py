"""Checks of the values that server hooks of a method return; errors name the hook in one line."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from fedflow.errors import FedflowError
from fedflow.methods.method import ServerState


def planned(method: str, returned: Any, clients: int) -> tuple[np.ndarray, ServerState]:
    """The cohort and the state that `plan` returned for ``clients`` N; raises `FedflowError` for others."""
    pair = returned if isinstance(returned, tuple) and len(returned) == 2 else (None, None)
    cohort = np.asarray(pair[0])
    numbers = cohort.ndim == 1 and cohort.dtype.kind == "i" and len(cohort)
    if not numbers or not isinstance(pair[1], ServerState):
        raise FedflowError(f"{method}.plan must return a cohort [m], m >= 1, and the server's state")
    if len(np.unique(cohort)) < len(cohort) or not ((cohort >= 0) & (cohort < clients)).all():
        raise FedflowError(f"{method}.plan must return distinct clients from 0 to {clients - 1}")
    return cohort, of_tensors(method, "plan", pair[1])


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a round, which extensions may return as numbers of NumPy or torch."""

    def number(name: str, value: Any) -> float | None:
        if value is None or isinstance(value, int | float):
            return value
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise FedflowError(f"{name} of an extension must be a number or None ({error})") from error

    return {name: number(name, value) for name, value in values.items()}


def of_tensors(method: str, hook: str, state: ServerState) -> ServerState:
    """The state; raises `FedflowError` for a field that no checkpoint could hold."""
    for name, value in state.tensors().items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise FedflowError(f"{method}.{hook}: {name} of the state must be a tensor or None, not {kind}")
    return state
