"""Kinds of methods as the engine sees them: what it promises to one of a kind, it keeps for all."""

from collections.abc import Iterable

from fedflow.local.training import LocalTraining
from fedflow.methods import METHODS, Method
from fedflow.methods.base import (
    Asynchronous,
    Clustered,
    Cyclic,
    Generative,
    Levelled,
    Onboarding,
    Pretrained,
)

PROTOCOLS = (Onboarding, Asynchronous, Clustered, Cyclic, Levelled, Generative, Pretrained)
FACTS = ("serves", "serves_with", "gathers", "alone", "series")
HOOKS = ("client_state", "draws", "phase", "epochs", "plan")


def profile(method: type[Method]) -> tuple:
    """What makes the engine take another path: abilities, facts and hooks of a method."""
    built = method()
    return (
        tuple(issubclass(method, protocol) for protocol in PROTOCOLS),
        tuple(getattr(method, fact) for fact in FACTS),
        tuple(getattr(method, hook) is not getattr(Method, hook) for hook in HOOKS),
        (bool(method.masks), *built.streams(LocalTraining())),
        isinstance(built, Onboarding) and built.onboarding_phases() > 0,
    )


def representatives(names: Iterable[str]) -> set[str]:
    """The first of these methods of every profile."""
    return set({profile(METHODS[name]): name for name in reversed(list(names))}.values())
