"""A mapping that names a registered class and gives its parameters.

In ``params.yaml`` it is flat. One field, the ``key``, names the class; names that are not fields of the
choice are parameters of the class::

    partitions:
      skewed: {dataset: mnist, clients: 20, scheme: dirichlet, alpha: 0.1}   # the key is `scheme`

There are three kinds of choices:

* A field such as ``parameters: Scheme`` holds the chosen object, typed when the choice is made.
* A field ``parameters: dict`` holds changes. They are laid over one another, then completed and typed
  (`fedflow.config.layers`).
* Without ``parameters``, the known classes are subclasses, which inherit the fields of the choice.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from fedflow.errors import MISSING, BadInput, place, unknown_name
from fedflow.settings import Settings, hints

PARAMETERS = "parameters"


class Nothing(Settings):
    """The parameters of a class that has none."""


class Choice(Settings):
    """Base of choices. `known` are the classes by the names that the field ``key`` accepts."""

    key: ClassVar[str] = "name"
    command: ClassVar[str] = ""  # lists the known names
    nested: ClassVar[bool] = False  # also accepts `as_dict`, the form in files of results
    overrides: ClassVar[Mapping[str, type[Settings]]] = {}  # fields with changes of other settings

    @classmethod
    def known(cls) -> Mapping[str, type[Settings] | None]:
        """The classes by name, or None for names without parameters."""
        raise NotImplementedError

    @classmethod
    def called(cls, name: Any) -> Any:
        """The known name for a name of the user, such as a label."""
        return name

    @classmethod
    def refused(cls, field: str, name: Any) -> BadInput:
        """The error for a name that is not known."""
        if name in (None, MISSING):
            return BadInput(field, name, f"one of {', '.join(cls.known())}")
        return unknown_name(field, name, cls.known(), cls.command)

    @classmethod
    def shared(cls) -> list[str]:
        """The fields of the choice itself."""
        return [f.name for f in dataclasses.fields(cls) if f.name != PARAMETERS]

    @classmethod
    def holds(cls) -> type | None:
        """The type of the field ``parameters``, or None if there is no such field."""
        return hints(cls).get(PARAMETERS)

    @classmethod
    def needs_key(cls) -> bool:
        """True for a key without a default."""
        return cls.__dataclass_fields__[cls.key].default is dataclasses.MISSING

    @classmethod
    def _accepted(cls) -> str:
        """The mapping that is accepted, in words."""
        return f"a mapping with `{cls.key}` and parameters" if cls.needs_key() else "a mapping of parameters"

    @classmethod
    def parse(cls, values: Any, section: str | None = None) -> Self:
        """Build from the flat mapping of ``params.yaml``, or from an object of a known class.

        Without the key, the name of the entry, which ends ``section``, chooses among subclasses.
        """
        section = cls.section if section is None else section
        values = {} if values is None and cls.holds() is dict else values
        if (kind := cls.holds()) not in (None, dict) and isinstance(values, kind):
            return cls(**{cls.key: getattr(values, "name"), PARAMETERS: values})  # noqa: B009
        if not isinstance(values, Mapping):
            raise BadInput(section, values, cls._accepted())
        if issubclass(cls, tuple(filter(None, cls.known().values()))):  # chosen already
            return super().parse(values, section)
        if cls.holds() is not None:
            if cls.key not in values and cls.needs_key():
                raise cls.refused(f"{section}.{cls.key}", MISSING)
            shared = cls.shared()
            flat = {name: value for name, value in values.items() if name not in shared}
            nested = flat.pop(PARAMETERS, {}) if cls.nested else {}
            if not isinstance(nested, Mapping) or (flat and nested):
                raise BadInput(f"{section}.{PARAMETERS}", nested, "absent, next to parameters by name")
            given = {name: value for name, value in values.items() if name in shared}
            return super().parse({**given, PARAMETERS: {**nested, **flat}}, section)
        name = cls.called(values.get(cls.key) or section.rpartition(".")[2])
        if not isinstance(name, str) or name not in cls.known():
            raise cls.refused(f"{section}.{cls.key}" if cls.key in values else section, name)
        return cls.known()[name].parse({**values, cls.key: name}, section)  # type: ignore[union-attr, return-value]

    def __post_init__(self) -> None:
        if (kind := self.holds()) is None:
            object.__setattr__(self, self.key, getattr(type(self), "name", ""))
        elif kind is not dict:
            object.__setattr__(self, self.key, self.called(getattr(self, self.key)))
            object.__setattr__(self, PARAMETERS, self._typed())
        super().__post_init__()

    def _typed(self) -> Settings:
        """The parameters as an object of the chosen class; a field of both has one value."""
        name, given = getattr(self, self.key), getattr(self, PARAMETERS)
        if not isinstance(name, str) or name not in self.known():
            raise self.refused(f"{self.section}.{self.key}", name)
        cls, shared = self.known()[name] or Nothing, self.shared()
        accepted = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        common = {field: getattr(self, field) for field in shared if field in accepted}
        if type(given) is cls:
            return dataclasses.replace(given, **common) if common else given  # type: ignore[type-var]
        if not isinstance(given, Mapping):
            raise BadInput(f"{self.section}.{PARAMETERS}", given, f"a mapping of parameters of {name}")
        for field in given:
            if field not in accepted:
                fields = {*shared, *accepted} - {self.key}
                raise unknown_name(f"{self.section}.{field}", field, fields, elsewhere=place(field))
        return cls.parse({**given, **common}, self.section)

    def flat(self) -> dict[str, Any]:
        """The flat mapping of ``params.yaml``, with defaults."""
        values = self.as_dict()
        return values | values.pop(PARAMETERS, {})
