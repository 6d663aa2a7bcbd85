"""A mapping that names a class and gives its parameters, and changes that are laid over one another."""

from collections.abc import Mapping
from typing import ClassVar

import pytest
from support import refused

import fedflow as ff
from fedflow.choice import Choice
from fedflow.config.layers import changed_by, typed
from fedflow.errors import BadInput
from fedflow.settings import Settings, option


class Shape(Settings):
    section = "figure"


class Circle(Shape):
    radius: float = option(1.0, "radius", gt=0)
    seed: int = option(0, "seed")


class Point(Shape):
    pass


class Figure(Choice):
    """A choice that holds what is chosen."""

    section = "figure"
    nested = True
    key: ClassVar[str] = "shape"
    shape: str = option(doc="a shape")
    seed: int = option(0, "seed", ge=0)
    parameters: Shape = option(factory=dict, doc="parameters of the shape")

    @classmethod
    def known(cls) -> Mapping[str, type[Shape]]:
        return {"circle": Circle, "point": Point}


class Pen(Choice):
    """A choice among subclasses."""

    section = "pens"
    key: ClassVar[str] = "pen"
    pen: str = option("", "the registered pen")
    width: int = option(1, "width", ge=1)

    @classmethod
    def known(cls) -> Mapping[str, type["Pen"]]:
        return {"dotted": Dotted}


class Dotted(Pen):
    name = "dotted"
    gap: int = option(2, "gap", ge=1)


class Inner(Settings):
    section = "training.inner"
    a: int = option(1, "a", ge=0)
    b: int = option(1, "b", ge=0)


class Training(Settings):
    section = "training"
    lr: float = option(0.1, "lr", gt=0)
    epochs: int = option(5, "epochs")
    steps: int | None = option(None, "steps")
    inner: Inner | None = option(None, "inner")


def test_a_flat_mapping_becomes_one_typed_object_and_what_it_writes_is_read_again() -> None:
    figure = Figure.parse({"shape": "circle", "radius": 2, "seed": 3})
    assert figure.parameters == Circle(radius=2.0, seed=3) and figure.seed == 3
    assert figure.as_dict() == {"shape": "circle", "seed": 3, "parameters": {"radius": 2.0, "seed": 3}}
    assert figure.flat() == {"shape": "circle", "seed": 3, "radius": 2.0}
    assert Figure.parse(figure.as_dict()) == Figure.parse(figure.flat()) == figure
    assert Figure(shape="circle", seed=3, parameters=figure.parameters).parameters is not None
    assert Figure(shape="point").as_dict() == {"shape": "point", "seed": 0, "parameters": {}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (5, r"^figures.mine: 5 .*a mapping with `shape` and parameters$"),
        ({}, r"^figures.mine.shape: missing; expected one of circle, point$"),
        ({"shape": "circel"}, r"^figures.mine.shape: 'circel' .*did you mean 'circle'"),
        ({"shape": ["circle"]}, r"^figures.mine.shape: \['circle'\] "),
        ({"shape": "circle", "radius": 0}, r"^figures.mine.radius: 0.0 .*a number > 0$"),
        ({"shape": "circle", "radios": 1}, r"^figures.mine.radios: .*did you mean 'radius'.* radius, seed$"),
        ({"shape": "point", "radius": 1}, r"^figures.mine.radius: "),
        ({"shape": "circle", "seed": -1}, r"^figures.mine.seed: -1 .*>= 0$"),
        ({"shape": "circle", "parameters": 3}, r"^figures.mine.parameters: 3 .*absent"),
        ({"shape": "circle", "radius": 1, "parameters": {"radius": 2}}, r"^figures.mine.param.*absent"),
    ],
)
def test_an_error_names_the_field_as_the_user_wrote_it(values: object, message: str) -> None:
    with refused(message):
        Figure.parse(values, section="figures.mine")


def test_parameters_of_another_choice_are_refused() -> None:
    with refused(r"^figure.parameters: .*parameters of point"):
        Figure(shape="point", parameters=Circle())


def test_subclasses_are_chosen_by_the_key_or_by_the_name_of_the_entry() -> None:
    assert Pen.parse({"gap": 3}, "pens.dotted") == Pen.parse({"pen": "dotted", "gap": 3}, "pens.mine")
    assert Pen.parse({"width": 2}, "pens.dotted").as_dict() == {"pen": "dotted", "width": 2, "gap": 2}
    for values, name, message in (
        ({}, "doted", r"^pens.doted: 'doted' .*did you mean 'dotted'"),
        ({"pen": "doted"}, "mine", r"^pens.mine.pen: 'doted' "),
        ({"gap": 0}, "dotted", r"^pens.dotted.gap: 0 .*>= 1"),
    ):
        with refused(message):
            Pen.parse(values, f"pens.{name}")


def test_a_subclass_of_a_known_class_parses_itself() -> None:
    class Dashed(Dotted):
        length: int = option(3, "length")

    assert Dashed.parse({"length": 4}, "pens.mine") == Dashed(length=4)


def test_layers_are_typed_together_and_an_error_names_the_layer_that_gave_the_value() -> None:
    below, above = ("methods.circle", {"radius": 2}), ("tuned.here.circle", {"seed": 4})
    assert typed(Circle, [below, above]) == Circle(radius=2.0, seed=4)
    with refused(r"^methods.circle.radius: 0.0 "):
        typed(Circle, [("methods.circle", {"radius": 0}), above])
    with refused(r"^tuned.here.circle.radius: 0.0 "):
        typed(Circle, [below, ("tuned.here.circle", {"radius": 0})])


def test_changes_of_nested_settings_keep_the_other_fields_and_their_objects() -> None:
    training = Training.parse({"lr": 0.3, "inner": {"a": 2}})
    assert changed_by(training, []) is training
    below, above = ("a.training", {"inner": {"b": 7}}), ("b.training", {"lr": 0.5})
    found = changed_by(training, [below, above])
    assert found == Training.parse({"lr": 0.5, "inner": {"a": 2, "b": 7}})
    assert changed_by(training, [above]).inner is training.inner
    assert changed_by(training, [("a.training", {"steps": 3})]).epochs == 5  # its default: steps replace it
    with refused(r"^a.training.inner.b: -1 "):
        changed_by(training, [("a.training", {"inner": {"b": -1}}), above])


def test_parameters_of_users_are_not_nested() -> None:
    """`--set methods.ditto.parameters.lam=2` would lose against a tuned lam."""

    class Flat(Figure):
        nested = False

    with pytest.raises(BadInput, match=r"^figure\.parameters: .*is not accepted"):
        Flat.parse({"shape": "circle", "parameters": {"radius": 2.0}})


def test_an_object_of_a_known_class_is_a_choice() -> None:
    given, written = ff.AAggFFS(host=ff.FedProx(mu=0.3)), {"host": {"name": "fedprox", "mu": 0.3}}
    assert given == ff.AAggFFS.parse(written)
