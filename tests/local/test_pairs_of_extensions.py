"""Every two extensions of local training work together, or one of them refuses the other in one line."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Ran, alike, images, prepare_run, run, same

from fedflow.data import Dataset
from fedflow.errors import BadInput
from fedflow.local.extensions.extension import Extension
from fedflow.local.local_training import EXTENSIONS, LocalTraining
from fedflow.local.teacher import Teacher
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "combine.md"
SGD: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5}
HALF: dict[str, Any] = {"participation": 0.5, "rounds": 2}
TAUGHT = {"name": "distil", "teacher": "large"}
EXPERT = {"score": "expert", "expert": "large", "mode": "lazy_epoch", "a": 0.4}
VARIANTS: dict[str, dict[str, Any]] = {  # every extension in each of its forms
    "augment": {"augment": "flip_crop"},
    "maml": {"adaptation": {"name": "maml"}},
    "proto": {"adaptation": {"name": "proto"}},
    "robust": {"objective": {"name": "robust"}, "augment": "flip_crop"},
    "distil": {"objective": TAUGHT},
    "curriculum": {"curriculum": {"score": "both", "a": 0.4}},
    "expert": {"curriculum": EXPERT},
}
PAIRS = [
    (one, other)
    for one, other in combinations(VARIANTS, 2)
    if all(VARIANTS[one].get(key, value) == value for key, value in VARIANTS[other].items())
]


@pytest.fixture(scope="module")
def federation(digits: Dataset) -> Federation:
    """Images in float64, with a network that clients may learn from and losses that may sort samples."""
    found = images(digits, dtype=torch.float64)
    large = FlatModel(partial(build, "mlp", (1, 8, 8), 10, hidden=(12, 8)), dtype=torch.float64)
    losses = torch.rand(len(found.train), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return replace(found, inputs={"teacher": Teacher(large, 3 * large.init(1)), "expert": losses})


def both(*names: str) -> dict[str, Any]:
    """The training with these variants."""
    merged = dict(SGD)
    for name in names:
        merged |= VARIANTS[name]
    return merged


def refusal(federation: Federation, *names: str) -> str | None:
    """The line that refuses these variants together; None if they may be used."""
    try:
        prepare_run("fedavg", federation, training=both(*names), **HALF)
    except BadInput as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def alone(federation: Federation) -> Mapping[str, Ran]:
    return {name: run("fedavg", federation, training=both(name), **HALF) for name in VARIANTS}


def test_every_extension_that_changes_the_loss_says_what_clients_minimize() -> None:
    """Compiled steps are refused with these words."""
    for kind in EXTENSIONS:
        assert bool(kind.minimizes) is (kind.loss is not Extension.loss)


def test_every_extension_has_a_variant() -> None:
    used = {type(each) for name in VARIANTS for each in LocalTraining.parse(both(name)).in_use}
    assert used == set(EXTENSIONS)


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_two_extensions_work_together_or_one_refuses_the_other(
    pair: tuple[str, str],
    federation: Federation,
    alone: Mapping[str, Ran],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loop and vmap agree, any workers and a resume give the same bits, and neither is ignored."""
    if line := refusal(federation, *pair):
        assert line.startswith("training.") and "\n" not in line
        return
    training = both(*pair)
    start = partial(prepare_run, "fedavg", federation, training=training, **HALF)
    loop = alike(start, tmp_path, monkeypatch, every=1, tolerance=1e-9)
    for name in pair:
        assert same(loop.state(), alone[name].state()) is (training == both(name))


def test_the_table_of_pairs_is_that_of_the_page(federation: Federation) -> None:
    """To write it again, copy the table that a failure shows into the page."""
    lines: list[str] = []

    def cell(one: str, other: str) -> str:
        pair = (one, other) if (one, other) in PAIRS else (other, one)
        if pair not in PAIRS:
            return ""
        if (line := refusal(federation, *pair)) is None:
            return "together"
        if line not in lines:
            lines.append(line)
        return f"refused ({lines.index(line) + 1})"

    rows = [[f"`{one}`", *(cell(one, other) for other in VARIANTS)] for one in VARIANTS]
    head = ["", *(f"`{name}`" for name in VARIANTS)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
    table += "\n\n" + "\n".join(f"{i}. `{line}`" for i, line in enumerate(lines, 1))
    assert table in PAGE.read_text(), f"the table is now\n\n{table}"
