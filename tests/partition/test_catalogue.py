"""The catalogue page: complete, up to date, and every recipe in it can be used."""

from pathlib import Path

import pytest
import yaml

from fedflow.data import DatasetParams
from fedflow.partition import SCHEMES, PartitionParams, make_partition
from fedflow.partition.catalogue import (
    EXAMPLES,
    PICTURES,
    RECIPES,
    catalogue,
    describe,
    pictures,
    toy_samples,
)

DOCS = Path(__file__).parents[2] / "docs"


def test_every_scheme_has_an_example_and_a_picture():
    assert set(EXAMPLES) == set(SCHEMES)
    assert {file.stem for file in (DOCS / PICTURES).glob("*.png")} == set(pictures())


def test_the_page_in_docs_is_that_of_the_code():
    assert (DOCS / "partitions.md").read_text() == catalogue()


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_the_line_under_a_picture_makes_that_partition(name):
    shown = describe(SCHEMES[name]).pictures
    assert next(iter(shown)) == name
    for picture, line in shown.items():
        entry = yaml.safe_load(line)
        assert entry == {"dataset": "mine"} | pictures()[picture]
        made = make_partition(PartitionParams.parse(entry), toy_samples())
        assert len(made.sizes) == entry["clients"]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe[0])
def test_a_set_up_of_the_literature_is_accepted(recipe):
    _, _, data, entry = recipe
    params = DatasetParams.parse(yaml.safe_load(data))
    others = {"synthetic_convex", "mixed_regression", "leaf_shakespeare", "tinyshakespeare"}  # no images
    assert ("normalise" in yaml.safe_load(data)) != (params.source in others)
    PartitionParams.parse(yaml.safe_load(entry) | {"dataset": "mine"})
