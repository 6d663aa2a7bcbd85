"""The contract of a method: ten hooks and four facts, protocols for the rest, and methods around others."""

import inspect
from dataclasses import dataclass, fields
from types import CodeType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from support import refused
from torch import Tensor

from fedflow.methods import METHODS
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.fairness._weighing import HOSTS, Weighing
from fedflow.methods.method import Ability, GlobalModel, Method, Passes, Round, S, contract
from fedflow.methods.protocols import Mixing, Noisy, Phased, Serving, samplers
from fedflow.methods.wrapped import HostState, Wrapped, inherited
from fedflow.settings import option

HOOKS = "check setup client_state streams plan broadcast local aggregate model_for work"
FACTS = "serves gathers newcomer serves_with"
PROTOCOLS = [kind for kind in Ability.__subclasses__() if kind.__module__ == "fedflow.methods.protocols"]


def hooks(kind: type) -> list[str]:
    return [name for name in contract(kind) if inspect.isfunction(vars(kind)[name])]


def test_an_author_reads_ten_hooks_and_four_facts() -> None:
    assert sorted(hooks(Method)) == sorted(HOOKS.split())
    assert sorted({*contract(Method)} - {*hooks(Method)}) == sorted(FACTS.split())


def test_every_name_belongs_to_one_protocol_only() -> None:
    names = [name for kind in (Method, *PROTOCOLS) for name in contract(kind)]
    assert len(names) == len({*names}) and all(contract(kind) for kind in PROTOCOLS)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in PROTOCOLS for name in contract(kind)])
def test_a_hook_without_its_protocol_is_refused(kind: type, name: str) -> None:
    line = rf"^Forgetful.{name} is a hook of {kind.__name__}: write class Forgetful\({kind.__name__}, ...\)$"
    own = {name: vars(kind)[name]}
    for bases, names in (((Method,), own), ((type("Mixin", (), own), Method), {})):
        with pytest.raises(TypeError, match=line):
            type("Forgetful", bases, names)
    assert issubclass(type("Careful", (kind, Method), own), kind)


def test_an_option_cannot_have_the_name_of_a_hook() -> None:
    with pytest.raises(TypeError, match=r"^Long.epochs is a hook of VariableEpochs"):

        class Long(FedAvg):
            epochs: int = option(doc="epochs")


def words(member: Any) -> set[str]:
    """The names and texts in the code of a function, a property or a class method."""
    function = getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
    left, found = [getattr(function, "__code__", None)], set[str]()
    while left:
        if (code := left.pop()) is not None:
            found |= {*code.co_names, *(each for each in code.co_consts if isinstance(each, str))}
            left += [each for each in code.co_consts if isinstance(each, CodeType)]
    return found


def unread(method: type[Method]) -> set[str]:
    """The options of a method that no code names that its hooks lead to."""
    kinds = (Method, *(kind for kind in PROTOCOLS if issubclass(method, kind)))
    left = [(name, 0) for kind in kinds for name in (*contract(kind), "validate")]
    seen, read = set[Any](), set[str]()
    while left:
        seen.add(at := left.pop())
        name, first = at
        owners = [i for i, base in enumerate(method.__mro__) if i >= first and name in vars(base)]
        if owners:
            found = words(vars(method.__mro__[owners[0]])[name])
            following = [(name, owners[0] + 1)] if "super" in found else []
            left += {*following, *((word, 0) for word in found if hasattr(method, word))} - seen
            read |= found
    return {field.name for field in fields(method)} - read


def test_every_option_of_a_method_is_read_on_the_way_from_a_hook() -> None:
    """As not by a method that replaces what its base does with an option."""

    class Median(FedAvg):
        def aggregate(self, now: Round, server: Any, cohort: Any) -> Any:
            return server, {}

    assert unread(Median) == {"server_lr"}
    assert not {name: unread(cls) for name, cls in METHODS.items() if unread(cls)}


def test_a_method_without_an_ability_gives_neutral_answers(federation: Any) -> None:
    now = Round(1, 1, 0.1, np.ones(2), federation.model, None, np.random.default_rng)
    server = GlobalModel(torch.zeros(1))
    assert Phased.of(FedAvg()).phase(now) == "" and Phased.of(FedAvg()).without_updates(now, server) is server
    assert not Noisy.of(FedAvg()).alone and not isinstance(FedAvg(), Mixing | Serving)
    ditto = METHODS["superfed"]()
    assert Mixing.of(ditto) is ditto


# Methods around others


class Counting(Ability):
    """A protocol of later, with names that no method has: a fact, and hooks with the server's state."""

    later_unit: ClassVar[str] = "none"

    def count_later(self, now: int, server: S) -> S:
        return server

    def both_later(self, server: S, more: int = 0) -> tuple[int, S]:
        return more, server

    def plain_later(self) -> str:
        return "neutral"


class Counted(Counting, FedAvg):
    later_unit = "clients"

    def count_later(self, now: int, server: GlobalModel) -> GlobalModel:
        return GlobalModel(server.model + now)

    def both_later(self, server: GlobalModel, more: int = 0) -> tuple[int, GlobalModel]:
        return more, GlobalModel(server.model * 2)

    def plain_later(self) -> str:
        return "host"


@dataclass(frozen=True)
class Outer(HostState):
    other: Tensor


def around(host: Method, *kinds: type) -> Wrapped[Outer]:
    """A method with a host that defines nothing but a state."""

    class Around(*kinds, Wrapped[Outer]):  # type: ignore[misc]
        wrapped = host

        def setup(self, model: Any, initial: Any) -> Outer:
            return Outer(host.setup(model, initial), torch.ones(1))

    return Around()


def test_a_hook_of_later_is_passed_on_with_the_state_of_the_host() -> None:
    outer, method = Outer(GlobalModel(torch.tensor(1.0)), torch.tensor(5.0)), around(Counted(), *KINDS)
    assert isinstance(method, Counting) and method.later_unit == "clients" and method.plain_later() == "host"
    after = method.count_later(now=2, server=outer)
    assert isinstance(after, Outer) and (after.host.model, after.other) == (3, 5)
    more, after = method.both_later(outer, 7)
    assert more == 7 and isinstance(after, Outer) and (after.host.model, after.other) == (2, 5)
    assert around(FedAvg(), *KINDS).plain_later() == "neutral"


KINDS = (Counting, *(kind for kind in FedAvg.__mro__ if Ability in kind.__bases__))


@pytest.mark.parametrize("method", ["aaggff_s", "aaggff_d"])
@pytest.mark.parametrize("host", HOSTS)
def test_nothing_of_a_host_is_forgotten(method: str, host: str) -> None:
    """Every hook and fact is the method's own, or that of the host."""
    built: Any = METHODS[method].parse({"host": {"name": host}})
    kinds = [each for each in type(built).__mro__ if each is Method or Ability in each.__bases__]
    assert {kind for kind in PROTOCOLS if issubclass(METHODS[host], kind)} <= {*kinds}
    for kind in kinds:
        for name in hooks(kind):
            assert getattr(type(built), name) is not vars(kind)[name], name
    for _, name in inherited(type(built)):
        assert getattr(built, name) == getattr(built.wrapped, name), name
    assert samplers(built) == samplers(built.wrapped)


def test_a_host_that_can_do_more_is_refused() -> None:
    class Moody(Phased, FedAvg):
        name = "moody"

    class Careless(Weighing):
        name = "careless"
        wrapped = Moody()  # type: ignore[assignment]

    with refused(r"^method\.host: 'moody' .* a method that is not Phased, which careless does not pass on"):
        Careless()


def test_a_wrapper_may_add_to_what_its_host_does() -> None:
    class More(*KINDS, Wrapped[Outer]):  # type: ignore[misc]
        wrapped = METHODS["fedsgd"]()
        setup = type(around(FedAvg(), *KINDS)).setup

        def work(self, now: Round, server: Outer, epochs: float, steps: int) -> Passes:
            return super().work(now, server, epochs, steps)._replace(losses=2.0)

    assert More().work(None, Outer(None, None), 5.0, 3) == Passes(1.0, losses=2.0)


def test_a_wrapper_must_make_its_state() -> None:
    with pytest.raises(TypeError, match=r"^Stateless must define setup, which makes a state$"):
        type("Stateless", (Wrapped,), {})
