"""The committed table of methods and steps of updates is what runs give."""

import sys
from pathlib import Path

import pytest

from fedflow.methods import METHODS
from fedflow.simulation.federation import Federation
from fedflow.simulation.updates import STEPS

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import composition
import reference

SOME = ("scaffold", "ifca", "local")  # one common model, groups, no mean


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    return composition.federation(tmp_path_factory.mktemp("digits"))


def test_the_table_has_every_method_and_step() -> None:
    assert list(composition.read()) == list(composition.combinations()), "run `python docs/composition.py`"


@pytest.mark.parametrize("names", [SOME, pytest.param((*METHODS,), marks=pytest.mark.slow)])
def test_the_table_is_what_runs_give(names: tuple[str, ...], federation: Federation) -> None:
    table = {key: line for key, line in composition.read().items() if key[0] in names}
    assert {key: composition.refusal(federation, *key) for key in table} == table


def test_the_page_has_every_cell_and_every_reason() -> None:
    page, _, reasons = reference.composition().partition("\n## Reasons\n")
    table = composition.read()
    refused = [key for key, line in table.items() if line]
    assert page.count("| no (") == len(refused) and page.count("| yes ") == len(table) - len(refused)
    assert f"no ({len(reasons.split('. `')) - 1})" in page
    assert all(f"[`{method}`]" in page for method, _ in table)
    assert not any("\n" in line for line in table.values())


def test_an_option_without_a_default_has_an_accepted_value() -> None:
    assert composition.example(STEPS["clip"]) == {"step": "clip", "norm": 1}
    assert composition.example(STEPS["secure"]) == {"step": "secure"}
