"""The list of published tables, which the catalogue shows."""

from fedflow.methods import METHODS
from fedflow.methods.tables import TABLES, published_in


def test_every_method_of_a_table_is_registered():
    assert {name for names in TABLES.values() for name in names.split()} <= set(METHODS)


def test_tables_of_a_method():
    assert published_in("pacfl")[-1] == "PACFL, Tables 3.11, 5.6 (MIX-4)"
    assert published_in("one_shot") == ["IFCA, Table 3 (FEMNIST)"]
    assert published_in("fedsgd") == []
