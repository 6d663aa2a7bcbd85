"""The catalogue page: complete and up to date; and the set-ups of the literature, which can all be used."""

import json
import re
from pathlib import Path

import pytest
import yaml

from fedflow.data import DatasetParams
from fedflow.methods.tables import TABLES
from fedflow.partition import SCHEMES, PartitionParams, make_partition
from fedflow.partition.catalogue import EXAMPLES, PICTURES, catalogue, describe, pictures, toy_samples

BOOKS = {
    "AAggFF": "aaggff",
    "curricula": "curricula",
    "FedDyn": "feddyn",
    "FedHeN": "fedhen",
    "FLT": "flt",
    "IFCA": "ifca",
    "MOML": "moml",
    "Morafah's thesis": "pacfl-flis",
    "PACFL": "pacfl-flis",
    "FLIS": "pacfl-flis",
    "PFLDyn": "pfl",
    "Sub-FedAvg": "subfedavg",
    "SuPerFed": "superfed",
    "": "pacfl-flis",
}
NOT_RESULTS = {("superfed", "2.2"), ("ifca", "3")}  # settings; a table that the book does not have
WORDS = {
    "label skew 20 %": "label skew 20 %",
    "Dir(0.1)": "Dirichlet 0.1",
    "MIX-4": "MIX-4",
    "newcomers": "newcomers",
    "traffic": "traffic",
    "SC-NIID(2)": "super clusters",
    "FEMNIST": "FEMNIST",
    "cross-silo": "cross-silo",
    "cross-device": "cross-device",
    "plug and play": "five hosts",
}


DOCS = Path(__file__).parents[2] / "docs"
ROWS = (DOCS / "reference/setups.md").read_text().partition("|---|---|---|---|\n")[2].splitlines()
SETUPS = [[cell.strip(" `") for cell in row.strip("|").split(" | ")] for row in ROWS]


def cited() -> list[tuple[str, str, str]]:
    """Every use of a published table: the book, the numbers, and what it is used for."""
    found = [(where, what) for what, where, _, _ in SETUPS]
    found += [(f"{paper} ({tables})", tables) for paper, tables in TABLES]
    uses = []
    for where, what in found:
        if match := re.search(r"Tables? ([A\d][\d., A]*(?:to [A\d.]+)?)", where):
            paper = re.split(r"[ ,]*\(|, |Table| and ", where)[0].strip()
            uses.append((BOOKS[paper], match[1], what))
    return uses


def test_every_scheme_has_an_example_and_a_picture():
    assert set(EXAMPLES) == set(SCHEMES)
    assert {file.stem for file in (DOCS / PICTURES).glob("*.png")} == set(pictures())


def test_the_catalogue_shows_every_picture():
    shown = re.findall(r"!\[.*\]\((.*)\.png\)", catalogue())
    assert sorted(shown) == sorted(f"{PICTURES}/{name}" for name in pictures())


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_the_line_under_a_picture_makes_that_partition(name):
    shown = describe(SCHEMES[name]).pictures
    assert next(iter(shown)) == name
    for picture, line in shown.items():
        entry = yaml.safe_load(line)
        assert entry == {"dataset": "mine"} | pictures()[picture]
        made = make_partition(PartitionParams.parse(entry), toy_samples())
        assert len(made.sizes) == entry["clients"]


def test_the_page_lists_all_set_ups():
    assert len(SETUPS) == 50


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup[0])
def test_a_set_up_of_the_literature_is_accepted(setup):
    _, _, data, entry = setup
    params = DatasetParams.parse(yaml.safe_load(data))
    others = {"synthetic_convex", "mixed_regression", "leaf_shakespeare", "tinyshakespeare"}  # no images
    assert ("normalize" in yaml.safe_load(data)) != (params.source in others)
    PartitionParams.parse(yaml.safe_load(entry) | {"dataset": "mine"})


def test_numbers_of_tables_are_those_of_the_books():
    uses = cited()
    assert len(uses) > 40
    for name, numbers, what in uses:
        labels = [table["label"] for table in book(name)["tables"]]
        for number in re.findall(r"A?\.?\d+(?:\.\d+)?", numbers):
            named = [
                label
                for label in labels
                if re.search(rf"\b{re.escape(number)}\b(?!\.\d)", label.partition(":")[0])
            ]
            assert named or (name, number) in NOT_RESULTS, (name, number, what)
            for word, wanted in WORDS.items():
                if what.startswith(word):
                    assert any(wanted in label for label in named), (what, number, named)


def book(name: str) -> dict:
    return json.loads((DOCS.parent / "fedflow/claims/published" / f"{name}.json").read_text())
