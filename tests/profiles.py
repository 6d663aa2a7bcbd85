"""Kinds of methods as the engine sees them: what it promises to one of a kind, it keeps for all."""

from collections.abc import Callable, Iterable
from functools import cache

from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS, Method
from fedflow.methods.protocols import (
    Asynchronous,
    Clustered,
    Cyclic,
    Generative,
    Leveled,
    Noisy,
    Onboarding,
    Phased,
    Pretrained,
    Pruning,
    Recording,
    VariableEpochs,
)

ABILITIES = (Onboarding, Asynchronous, Clustered, Cyclic, Leveled, Generative, Pretrained)
PROTOCOLS = (*ABILITIES, Noisy, Phased, Pruning, Recording, VariableEpochs)
FACTS = ("serves", "serves_with", "gathers")
HOOKS = ("client_state", "plan")
CHEAP = ("fedcvae", "heterofl", "cc_fedams")  # of their profiles


@cache
def profile(method: type[Method]) -> tuple:
    """What makes the engine take another path: abilities, facts and hooks of a method."""
    built = method()
    return (
        tuple(issubclass(method, protocol) for protocol in PROTOCOLS),
        tuple(getattr(method, fact) for fact in FACTS),
        tuple(getattr(method, hook) is not getattr(Method, hook) for hook in HOOKS),
        (Noisy.of(built).alone, *built.streams(LocalTraining())),
        isinstance(built, Onboarding) and built.onboarding_phases() > 0,
    )


def abilities(method: type[Method]) -> tuple:
    """What it can do, whatever its clients keep and draw."""
    return (method.serves, method.gathers, *(issubclass(method, protocol) for protocol in ABILITIES))


def served(method: type[Method]) -> tuple:
    """What makes the record of a run another one."""
    clusters = getattr(method, "dissimilarity", Clustered.dissimilarity) is not Clustered.dissimilarity
    kinds = (issubclass(method, kind) for kind in (Clustered, Leveled, Generative, Pruning))
    return (method.serves, method.serves_with == (), clusters, *kinds)


def representatives(names: Iterable[str], kind: Callable[[type[Method]], tuple] = profile) -> set[str]:
    """One of these methods of every kind."""
    cheap_last = sorted(names, key=lambda name: (name in CHEAP, name == "fedavg"))
    return set({kind(METHODS[name]): name for name in cheap_last}.values())
