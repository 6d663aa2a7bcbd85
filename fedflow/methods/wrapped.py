"""Base of methods that wrap a host method, which provides the hooks and facts that they do not define."""

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
    """State of a method with a host; ``host`` is the host's state."""

    host: Any


W = TypeVar("W", bound=HostState)


class Wrapped(Sampling, Method[W], Generic[W]):
    """A method around a host, which provides the hooks and facts that a subclass does not define.

    They are computed from `Method` and from the subclass's protocols. A hook with an argument ``server`` gets
    the host's state. A host with other protocols is refused.
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
    """Hooks and facts that a class inherits from `Method` or a protocol unchanged, with their classes."""
    kinds = [base for base in cls.__mro__ if base is Method or Ability in base.__bases__]
    definers = {name: base for base in reversed(cls.__mro__) for name in vars(base)}
    return [(kind, name) for kind in kinds for name in contract(kind) if definers[name] is kind]


def _as(kind: type, host: Method[Any]) -> Any:
    """The host, or the defaults of a protocol that it lacks."""
    return kind.of(host) if issubclass(kind, Ability) else host


def _pass_on(cls: type) -> None:
    """Replace the hooks that the class does not define, except those that create a state."""
    for kind, name in inherited(cls):
        hook = vars(kind)[name]
        if isfunction(hook):
            form, result = signature(hook), get_type_hints(hook).get("return")
            if not isinstance(result, TypeVar) or "server" in form.parameters:
                setattr(cls, name, _passed_on(kind, hook, form, result))


def _passed_on(kind: type, hook: Callable[..., Any], form: Signature, result: Any) -> Callable[..., Any]:
    """A hook of this ``form`` and ``result`` that calls the host's hook with the host's state."""

    @wraps(hook)
    def call(self: Wrapped[Any], *args: Any, **kwargs: Any) -> Any:
        given = form.bind(self, *args, **kwargs)
        state: Any = given.arguments.get("server")
        if state is not None:
            given.arguments["server"] = state.host
        answer = getattr(_as(kind, self.wrapped), hook.__name__)(*given.args[1:], **given.kwargs)
        if isinstance(result, TypeVar):
            return replace(state, host=answer)
        states = [isinstance(part, TypeVar) for part in get_args(result)]
        if any(states):
            return tuple(replace(state, host=v) if s else v for s, v in zip(states, answer, strict=True))
        return answer

    return call


_pass_on(Wrapped)  # so that `super()` in a subclass is the host too
