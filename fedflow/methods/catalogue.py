"""Descriptions of methods, read from their code: for ``fedflow methods`` and the docs site."""

import sys
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch

from fedflow.data.examples import Examples
from fedflow.local.client import Client
from fedflow.local.local_training import LocalTraining
from fedflow.local.samples import Samples
from fedflow.local.schedule import STEP, Extra, Schedule
from fedflow.local.task import Task
from fedflow.local.wire import masked, message_bytes
from fedflow.methods import FAMILIES
from fedflow.methods.method import Method, Round
from fedflow.methods.protocols import Leveled, Noisy, Phased, Pruning, Specialized
from fedflow.methods.registry import METHODS
from fedflow.methods.tables import published_in
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.settings import explain, markdown


@dataclass(frozen=True)
class MethodPage:
    """One method: its module's text, hyperparameters, bytes per client and round, published tables."""

    name: str
    label: str
    serves: str
    idea: str
    text: str
    options: list[dict[str, Any]]
    network: str
    down: int
    up: int
    published: list[str]


def describe(method: type[Method]) -> MethodPage:
    """The page of one method with default hyperparameters; traffic is counted from messages."""
    down, up = traffic(method)
    options, published = explain(method), published_in(method.name)
    return MethodPage(*_about(method), options, _network(method), down, up, published)


def _about(method: type[Method]) -> tuple[str, str, str, str, str]:
    """Name, label, what it serves, idea and text."""
    text = (sys.modules[method.__module__].__doc__ or "").strip()
    idea = text.split("\n\n")[0].replace("\n", " ").partition(": ")[2]
    return method.name, method.label, method.serves, idea, text


def traffic(method: type[Method]) -> tuple[int, int]:
    """Bytes down and up for one client in one round, counted in one local step on two blank images."""
    instance, training = method(), LocalTraining.parse({})
    networks = instance.networks() if isinstance(instance, Leveled) else {"": {}}
    whole = _example(method)
    level, options = [*networks.items()][-1]
    model, sizes = whole.variant(**options), np.full(len(networks), 2)  # the last client has the largest
    server = instance.setup(whole, whole.init)
    round = Round(1, 1, training.lr, sizes, whole, None, np.random.default_rng)
    received = instance.broadcast(round, server, len(sizes) - 1)
    examples = Examples(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    task, data = (
        Task(model, training, training.lr, phase=Phased.of(instance).phase(round), level=level),
        Samples.all_of(examples),
    )
    draws = Noisy.of(instance).draws(model, training)
    schedules = {
        stream: Schedule(torch.arange(2)[None]).having(
            {"draws": Extra(torch.zeros(1, draws.get(stream, 0)), STEP)}
        )
        for stream in instance.streams(training)
    }
    first = instance.client_state(model, model.init(0))
    kept = {name: value if isinstance(value, torch.Tensor) else value(0) for name, value in first.items()}
    client = Client(task, data, schedules, received, kept, selection=data)
    client.noise = torch.Generator().manual_seed(0)
    update = instance.local(client)
    codings = [masked(Pruning.of(instance).masks)]
    up = message_bytes(update.vectors, len(update.scalars), codings)
    return message_bytes(received, codings=codings), up


def example(method: type[Method]) -> str:
    """The network with which the traffic of a method is counted."""
    return method.example if issubclass(method, Specialized) else Specialized.example


def _example(method: type[Method]) -> FlatModel:
    return FlatModel(partial(build, example(method), (3, 32, 32), 10))


def _network(method: type[Method]) -> str:
    """The network with which traffic is counted, in words."""
    largest = "the largest of " if issubclass(method, Leveled) else ""
    return f"{largest}{example(method)} for CIFAR-10 (P = {_example(method).size:,})"


@dataclass(frozen=True)
class Family:
    """The methods of one family, by name: its title, the sentence of its package, its pages."""

    title: str
    about: str
    pages: list[MethodPage]


def listed() -> list[tuple[str, str, list[tuple[str, ...]]]]:
    """Title and sentence of every family, and name, label, what it serves and idea of its methods."""
    found = [(_title(package), (package.__doc__ or "").strip(), _names(package)) for package in FAMILIES]
    known = {name for _, _, names in found for name in names}
    if others := sorted(METHODS.keys() - known):
        found.append(("Plug-ins", "Methods of other packages.", others))
    return [(title, about, [_about(METHODS[name])[:4] for name in names]) for title, about, names in found]


def families() -> list[Family]:
    """All registered methods by family."""
    return [_family(package) for package in FAMILIES]


def _family(package: ModuleType) -> Family:
    pages = [describe(METHODS[name]) for name in _names(package)]
    return Family(_title(package), (package.__doc__ or "").strip(), pages)


def _names(package: ModuleType) -> list[str]:
    return sorted(n for n, method in METHODS.items() if method.__module__.startswith(f"{package.__name__}."))


def _title(package: ModuleType) -> str:
    return package.__name__.rpartition(".")[2].capitalize()


def catalogue() -> str:
    """The method catalogue in Markdown: one table per family, then one section per registered method."""
    grouped = families()
    pages = [page for family in grouped for page in family.pages]
    return table(grouped) + "".join(f'\n<a id="{page.name}"></a>\n\n## {section(page)}' for page in pages)


def table(grouped: list[Family], link: str = "#{}") -> str:
    """One table per family in Markdown, with links to the sections or pages of the methods."""
    lines = [
        "# Methods",
        "",
        f"Traffic is bytes per client and round at the defaults, with {_network(Method)}",
        "if the section of a method names no other network.",
    ]
    for family in grouped:
        lines += ["", f"## {family.title}", "", family.about, ""]
        lines += ["| name | method | serves | down | up | idea |", "|---|---|---|---:|---:|---|"]
        lines += [_row(page, link) for page in family.pages]
    return "\n".join(lines) + "\n"


def _row(page: MethodPage, link: str) -> str:
    cells = [f"[`{page.name}`]({link.format(page.name)})", page.label, page.serves]
    return f"| {' | '.join(cells)} | {page.down:,} | {page.up:,} | {page.idea} |"


def section(page: MethodPage) -> str:
    """Title, text, published tables and hyperparameters of a method in Markdown."""
    lines = [f"{page.label} (`{page.name}`)", "", page.text, ""]
    if page.network != _network(Method):
        lines += [f"*Traffic* in the table: with {page.network}.", ""]
    if page.published:
        lines += [f"*Published results*: {'; '.join(page.published)}.", ""]
    return "\n".join(lines + markdown(page.options)).rstrip("\n") + "\n"
