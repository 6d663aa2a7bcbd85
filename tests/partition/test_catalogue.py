"""The catalogue page: complete, up to date, and every recipe in it can be used."""

from pathlib import Path

import pytest
import yaml

from fedflow.data import DatasetParams
from fedflow.partition import SCHEMES, PartitionParams, make_partition
from fedflow.partition.catalogue import EXAMPLES, PICTURES, RECIPES, catalogue, describe, example, toy_samples

DOCS = Path(__file__).parents[2] / "docs"


def test_every_scheme_has_an_example_and_a_picture():
    assert set(EXAMPLES) == set(SCHEMES)
    assert {file.stem for file in (DOCS / PICTURES).glob("*.png")} == set(SCHEMES)


def test_the_page_in_docs_is_that_of_the_code():
    assert (DOCS / "partitions.md").read_text() == catalogue()


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_the_line_under_a_picture_makes_that_partition(name):
    entry = yaml.safe_load(describe(SCHEMES[name]).example)
    assert entry == {"dataset": "mine", "scheme": name} | example(name)
    made = make_partition(PartitionParams.parse(entry), toy_samples())
    assert len(made.sizes) == 20


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe[0])
def test_a_set_up_of_the_literature_is_accepted(recipe):
    _, _, data, entry = recipe
    DatasetParams.parse(yaml.safe_load(data))
    PartitionParams.parse(yaml.safe_load(entry) | {"dataset": "mine"})
