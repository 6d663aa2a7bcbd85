import pickle
import re
from typing import Any

import numpy as np
import pytest
from support import refused

from fedflow.errors import BadInput, unknown_name
from fedflow.settings import Settings, explain, option, registering


class Inner(Settings):
    section = "outer.inner"
    depth: int = option(1, "how deep", ge=0)


class Example(Settings):
    section = "example"
    rate: float = option(0.1, "a rate", symbol="eta", source="page 3", gt=0, le=1, grid=(0.1, 1))
    count: int = option(2, "a number", ge=1, lt=10)
    name: str = option("mean", "a name", choices=("mean", "median"))
    flag: bool = option(False, "a switch")
    limit: float | None = option(None, "a limit or null", gt=0)
    layers: list[int] = option(factory=list, doc="widths")
    pair: tuple[float, ...] = option((), "numbers")
    more: dict = option(factory=dict, doc="anything")
    inner: Inner = option(factory=Inner, doc="settings within settings")
    spare: Inner | None = option(None, "settings or null")


class Needy(Settings):
    section = "needy"
    source: str = option(doc="where from")


class Ordered(Settings):
    section = "ordered"
    low: int = option(0, "lower end")
    high: int = option(1, "upper end")

    def validate(self) -> None:
        if self.low > self.high:
            raise BadInput("ordered.low", self.low, f"at most ordered.high = {self.high}")


def test_defaults_are_values_of_their_types_and_cannot_be_changed() -> None:
    assert Example() == Example.parse({}) == Example.parse(Example().as_dict())
    with pytest.raises(AttributeError):
        Example().count = 3


@pytest.mark.parametrize(
    ("field", "given", "value"),
    [
        ("rate", 1, 1.0),
        ("rate", "1e-3", 0.001),  # what YAML makes of 1e-3
        ("limit", None, None),
        ("limit", 2, 2.0),
        ("layers", (1, 2), [1, 2]),
        ("pair", [1, 2.5], (1.0, 2.5)),
        ("more", {"a": [1]}, {"a": [1]}),
        ("rate", np.float64(0.05), 0.05),
        ("rate", np.int64(1), 1.0),
        ("count", np.int64(3), 3),
        ("flag", np.bool_(True), True),
        ("layers", [np.int32(8), 4], [8, 4]),
        ("pair", (np.float32(0.5),), (0.5,)),
        ("more", {"a": [np.int64(1)], "b": {"c": np.float64(2)}}, {"a": [1], "b": {"c": 2.0}}),
        ("inner", {"depth": 3}, Inner(depth=3)),
        ("inner", Inner(depth=3), Inner(depth=3)),
    ],
)
def test_plain_values_become_those_of_the_field(field: str, given: Any, value: Any) -> None:
    parsed = getattr(Example.parse({field: given}), field)
    assert parsed == value
    assert type(parsed) is type(value)


NAN = float("nan")


@pytest.mark.parametrize(
    ("field", "value", "accepted"),
    [
        *(
            ("rate", value, "a number > 0 and <= 1")
            for value in (0, 1.5, NAN, float("inf"), "fast", True, None, np.float64(NAN), np.bool_(True))
        ),
        *(("count", v, "a whole number >= 1 and < 10") for v in (np.float64(2), 2.0, True, 10)),
        ("name", 3, "one of mean, median"),
        ("flag", 1, "true or false"),
        ("limit", -1, "a number > 0 or null"),
        ("layers", "12", "a list, each item a whole number"),
        ("layers", 3, "a list, each item a whole number"),
        ("more", [1], "a mapping"),
        ("inner", 3, "a mapping"),
    ],
)
def test_a_bad_value_names_the_field_and_what_it_accepts(field: str, value: Any, accepted: str) -> None:
    with pytest.raises(BadInput) as error:
        Example.parse({field: value})
    assert error.value.field == f"example.{field}"
    assert error.value.accepted.startswith(accepted)
    assert re.fullmatch(rf"example\.{field}: .* is not accepted; expected {accepted}.*", str(error.value))


def test_items_of_lists_are_named_by_their_place() -> None:
    with pytest.raises(BadInput, match=r"^example\.layers\[1\]: 'two' is not accepted"):
        Example(layers=[1, "two"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"inner": {"dept": 3}}, r"^example\.inner\.dept: "),
        ({"inner": {"depth": -1}}, r"^example\.inner\.depth: -1 "),
        ({"spare": {"dept": 3}}, r"^example\.spare\.dept: .*did you mean 'depth'"),
        ({"spare": 3}, r"^example\.spare: 3 .*expected a mapping or null"),
        ({"nam": 1}, r"^example\.nam: 'nam' is not accepted \(did you mean 'name'\?\); expected one of"),
        ({"name": "median "}, r"^example\.name: 'median ' .*did you mean 'median'\?"),
        ([1], r"^example: \[1\] is not accepted; expected a mapping of field names to values$"),
    ],
)
def test_wrong_names_and_nested_settings_are_named_in_full(values: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Example.parse(values)


def test_a_missing_field_without_a_default_is_named() -> None:
    with pytest.raises(BadInput, match=r"^needy\.source: missing; expected text \(where from\)$"):
        Needy.parse({})
    assert explain(Needy)[0]["default"] == "required"


def test_fields_are_checked_against_each_other() -> None:
    assert Ordered(low=1, high=1).low == 1
    with pytest.raises(BadInput, match=r"^ordered\.low: 3 .* at most ordered\.high = 2$"):
        Ordered(low=3, high=2)


def test_every_field_explains_itself() -> None:
    rows = {row["name"]: row for row in explain(Example)}
    assert rows["rate"] == {
        "name": "rate",
        "symbol": "eta",
        "default": 0.1,
        "accepts": "a number > 0 and <= 1",
        "doc": "a rate",
        "source": "page 3",
        "grid": (0.1, 1),
    }
    assert rows["inner"]["default"] == Inner()


def test_errors_keep_their_parts_across_processes() -> None:
    error = pickle.loads(pickle.dumps(BadInput("method.mu", -1, "a number >= 0")))  # noqa: S301
    assert (error.field, error.value, error.accepted) == ("method.mu", -1, "a number >= 0")
    assert str(error) == "method.mu: -1 is not accepted; expected a number >= 0"


@pytest.mark.parametrize(
    ("value", "known", "guess"),
    [
        ("FedAvg", ["fedevg", "fedavg"], "fedavg"),
        ("LG-FedAvg", ["fedavg", "lg_fedavg"], "lg_fedavg"),
        ("learning_rate", ["server_lr", "lr"], "lr"),
        ("num_clients", ["evaluate_clients", "clients"], "clients"),
        ("global_rounds", ["rounds", "round_time"], "rounds"),
        ("local_epochs", ["least_epochs", "epochs"], "epochs"),
        ("join_ratio", ["participation", "ratio"], "participation"),
        ("strategy", ["strata", "method"], "method"),
    ],
)
def test_a_guess_ignores_case_and_punctuation_and_knows_common_names(value, known, guess) -> None:
    assert unknown_name("field", value, known).guess == guess


def test_a_long_list_is_reduced_to_the_closest_names() -> None:
    known = [f"{letter}{number}" for letter in "abc" for number in range(10)]
    line = str(unknown_name("field", "b77", known, "fedflow methods"))
    assert re.search(r"'b7'.*one of b7, .* or 25 more; `fedflow methods` lists", line)
    assert line.count(",") == 4


def test_a_value_that_is_too_long_is_cut() -> None:
    assert len(str(BadInput("field", {"a" * 1000: 1}, "less"))) < 300
    assert "a int that is too long" in str(BadInput("field", 10**5000, "less"))


def test_unknown_name_without_a_close_one_lists_all() -> None:
    message = "method.name: 'xyz' is not accepted; expected one of a, b"
    assert str(unknown_name("method.name", "xyz", ["b", "a"])) == message


def test_a_class_is_registered_with_its_base_under_the_name_of_a_folder() -> None:
    register = registering(table := {}, Example)
    for name in ("../up", "half way", "1st", ""):
        with refused("expected letters, digits and _, beginning with a letter"):
            register(name, "label")
    with refused(r"class: 'Needy' is not accepted; expected a class of .*\.Example"):
        register("needy", "Needy")(Needy)
    assert register("example", "An example")(Example) is table["example"]
