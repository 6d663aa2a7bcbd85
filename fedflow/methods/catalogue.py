"""What a method is, read off its code: for ``fedflow methods NAME`` and the catalogue in ``docs/``."""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedflow.data.examples import Examples
from fedflow.local.client import Client
from fedflow.local.samples import Samples
from fedflow.local.schedule import Schedule
from fedflow.local.sgd import Task
from fedflow.local.training import LocalTraining
from fedflow.local.wire import message_bytes
from fedflow.methods.base import Method, Round
from fedflow.methods.registry import METHODS
from fedflow.methods.tables import published_in
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.settings import explain, markdown


@dataclass(frozen=True)
class Page:
    """One method: its module's text, hyper-parameters, bytes per participant and round, published tables."""

    name: str
    label: str
    serves: str
    idea: str
    text: str
    options: list[dict[str, Any]]
    down: int
    up: int
    published: list[str]

    def row(self) -> tuple[str, str, str, str]:
        return self.name, self.label, self.serves, self.idea


def describe(method: type[Method]) -> Page:
    """The page of one method with default hyper-parameters; traffic is counted from messages of LeNet-5."""
    text = (sys.modules[method.__module__].__doc__ or "").strip()
    idea = text.split("\n\n")[0].replace("\n", " ").partition(": ")[2]
    down, up = traffic(method)
    options, published = explain(method), published_in(method.name)
    return Page(method.name, method.label, method.serves, idea, text, options, down, up, published)


def traffic(method: type[Method]) -> tuple[int, int]:
    """Bytes down and up for one participant in one round, by running one local step on two blank images."""
    instance, training, model = (
        method(),
        LocalTraining.parse({}),
        FlatModel(lambda: build("lenet5", (3, 32, 32), 10)),
    )
    server = instance.setup(model, model.init)
    round = Round(1, 1, training.lr, np.array([2]), model, None, np.random.default_rng)
    received = instance.broadcast(round, server, 0)
    examples = Examples(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    task, data = Task(model, training, training.lr), Samples.all_of(examples)
    schedules = dict.fromkeys(instance.streams(training), Schedule(torch.arange(2)[None]))
    kept = instance.client_state(model, model.init(0))
    update = instance.local(Client(task, data, schedules, received, kept))
    up = message_bytes(update.vectors, len(update.scalars), method.masks)
    return message_bytes(received), up


def catalogue() -> str:
    """The method catalogue in Markdown, one section per registered method."""
    pages = [describe(METHODS[name]) for name in sorted(METHODS)]
    head = [
        "# Methods",
        "",
        "Written by `fedflow methods --markdown > docs/methods.md` from the code; do not edit by hand.",
        "Traffic is bytes per participant and round with LeNet-5 for CIFAR-10 (P = 62,006), at the defaults.",
        "",
        "| name | method | serves | down | up | idea |",
        "|---|---|---|---:|---:|---|",
    ]
    rows = [
        f"| [`{p.name}`](#{p.name}) | {p.label} | {p.serves} | {p.down:,} | {p.up:,} | {p.idea} |"
        for p in pages
    ]
    return "\n".join([*head, *rows, *(_section(page) for page in pages)]) + "\n"


def _section(page: Page) -> str:
    lines = ["", f'<a id="{page.name}"></a>', "", f"## {page.label} (`{page.name}`)", "", page.text, ""]
    if page.published:
        lines += [f"*Published results*: {'; '.join(page.published)}.", ""]
    return "\n".join(lines + markdown(page.options))
