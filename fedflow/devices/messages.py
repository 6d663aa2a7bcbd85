"""The orders to a client and its answer, with the checks of both ends."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from fedflow import __version__
from fedflow.errors import MISSING, BadInput
from fedflow.local.local_training import LocalTraining
from fedflow.methods.method import Message, Method
from fedflow.project.digest import canonical
from fedflow.settings import written
from fedflow.simulation.updates.path import NEGATIVE, NOT_FINITE

Form = dict[str, tuple[int, ...]]  # shapes by name
WEIGHTLESS = "its weight is 0, like all weights of its group"


@dataclass(frozen=True)
class Orders:
    """Instructions to a client, sent with the message of the method; ``epochs`` None: the usual number.

    ``settings`` are the server's `shared` settings.
    """

    t: int
    rounds: int
    client: int
    clients: int
    mean_samples: float
    settings: str
    phase: str = ""
    epochs: int | None = None


@dataclass
class Answer:
    """The reply of a client; ``failure`` says why it has no update."""

    client: int
    vectors: dict[str, Tensor] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    reported: dict[str, float] = field(default_factory=dict)
    weight: float = 0.0
    group: int = 0
    train_loss: float = 0.0
    failure: str = ""


def shared(method: Method, training: LocalTraining, seed: int) -> str:
    """The settings in which both ends must agree, as JSON by full name; ``training`` is the method's."""
    sections = {"method": method.as_dict(), "training": training.as_dict()}
    named = {f"{section}.{name}": v for section, values in sections.items() for name, v in values.items()}
    return canonical({"fedflow": __version__, "method": method.name, "seed": seed, **named})


def need_agreement(ours: str, servers: str) -> None:
    """Raise `BadInput` for the first of a client's `shared` settings that differs from the server's."""
    here, there = json.loads(ours), json.loads(servers)
    for name in sorted(here | there):
        expected = there.get(name)
        if name not in here or canonical(here[name]) != canonical(expected):
            raise BadInput(name, here.get(name, MISSING), f"{written(expected)}, as the server has it")


def fault(answer: Answer, sent: Form) -> str:
    """The reason why the server cannot use an answer to a message of the form ``sent``; else empty."""
    numbers = [answer.weight, answer.group, answer.train_loss, *answer.scalars.values()]
    vectors = answer.vectors.values()
    if not all(map(math.isfinite, numbers)) or not all(bool(v.isfinite().all()) for v in vectors):
        return NOT_FINITE
    if answer.weight < 0:
        return NEGATIVE.format(answer.weight)
    both = answer.vectors.keys() & sent.keys()
    return difference(shapes(answer.vectors, both), {name: sent[name] for name in both})


def common_form(answers: Sequence[Answer]) -> Form:
    """The form of most of these answers; no message has the shapes of every method."""
    forms = [form(answer) for answer in answers]
    return max(forms, key=forms.count)


def form(answer: Answer) -> Form:
    """The shapes of the vectors and scalars of an answer, by name."""
    return shapes(answer.vectors, answer.vectors) | dict.fromkeys(answer.scalars, ())


def difference(sent: Form, expected: Form) -> str:
    """The first difference between the forms of two answers, as a reason to refuse one; empty if equal."""
    for name in sorted(sent | expected):
        if name not in sent:
            return f"it did not send {name!r}"
        if name not in expected:
            return f"it sent {name!r}, which is not expected"
        if sent[name] != expected[name]:
            return f"its {name!r} has the shape {[*sent[name]]}, not {[*expected[name]]}"
    return ""


def shapes(vectors: Message, names: Iterable[str]) -> Form:
    """The shapes of these vectors by name."""
    return {name: tuple(vectors[name].shape) for name in names}
