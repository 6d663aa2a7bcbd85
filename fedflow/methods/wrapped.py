"""Base of methods that wrap another one: hooks and facts that they do not define are those of the other."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Signature, isfunction, signature
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from fedflow.errors import BadInput
from fedflow.methods.method import Ability, Method, ServerState, contract
from fedflow.methods.protocols import Sampling, samplers


@dataclass(frozen=True)
class HostState(ServerState):
    """The state of a method with a host, whose own state is ``host``."""

    host: Any


W = TypeVar("W", bound=HostState)


class Wrapped(Sampling, Method[W], Generic[W]):
    """A method around a host: what a subclass does not define itself is passed on to the host.

    Which hooks and facts that are is computed from `Method` and from the protocols of the subclass. A hook
    with an argument ``server`` is given the host's state. A host with further protocols is refused.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _pass_on(cls)
        if missing := [name for kind, name in inherited(cls) if isfunction(vars(kind)[name])]:
            raise TypeError(f"{cls.__name__} must define {missing[0]}, which makes a state")

    @property
    def wrapped(self) -> Method[Any]:
        """The host."""
        raise NotImplementedError

    def validate(self) -> None:
        host = self.wrapped
        for kind in Ability.__subclasses__():
            if isinstance(host, kind) and not isinstance(self, kind):
                accepted = f"a method that is not {kind.__name__}, which {self.name} does not pass on"
                raise BadInput("method.host", host.name, accepted)
        for kind, name in inherited(type(self)):
            object.__setattr__(self, name, getattr(_as(kind, host), name))

    def samplers(self) -> tuple[str, ...]:
        return samplers(self.wrapped)


def inherited(cls: type) -> list[tuple[type, str]]:
    """The hooks and facts that a class takes from `Method` or a protocol as they are, with their definers."""
    kinds = [each for each in cls.__mro__ if each is Method or Ability in each.__bases__]
    definers = {name: each for each in reversed(cls.__mro__) for name in vars(each)}
    return [(kind, name) for kind in kinds for name in contract(kind) if definers[name] is kind]


def _as(kind: type, host: Method[Any]) -> Any:
    """The host as what defines a hook."""
    return kind.of(host) if issubclass(kind, Ability) else host


def _pass_on(cls: type) -> None:
    """Replace the hooks that the class does not define, except those that make a state from nothing."""
    for kind, name in inherited(cls):
        hook = vars(kind)[name]
        if isfunction(hook):
            form, result = signature(hook), get_type_hints(hook).get("return")
            if not isinstance(result, TypeVar) or "server" in form.parameters:
                setattr(cls, name, _passed_on(kind, hook, form, result))


def _passed_on(kind: type, hook: Callable[..., Any], form: Signature, result: Any) -> Callable[..., Any]:
    """A hook of this ``form`` and ``result`` that calls that of the host with the host's state."""

    @wraps(hook)
    def call(self: Wrapped[Any], *args: Any, **kwargs: Any) -> Any:
        given = form.bind(self, *args, **kwargs)
        state: Any = given.arguments.get("server")
        if state is not None:
            given.arguments["server"] = state.host
        found = getattr(_as(kind, self.wrapped), hook.__name__)(*given.args[1:], **given.kwargs)
        if isinstance(result, TypeVar):
            return replace(state, host=found)
        states = [isinstance(each, TypeVar) for each in get_args(result)]
        if any(states):
            return tuple(replace(state, host=v) if own else v for own, v in zip(states, found, strict=True))
        return found

    return call


_pass_on(Wrapped)  # so that `super()` in a subclass is the host too
