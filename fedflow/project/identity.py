"""The identity of a result: settings, seed, content of inputs, code and libraries.

Runs, procedures, central networks and partitions have an `Identity`. A finished result keeps it in a file, so
that a later command can tell whether the result is current, and why not.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedflow.naming import flat, text
from fedflow.project.code import ASIDE, code_digest, modules_of
from fedflow.project.digest import KEY, canonical, digest

FILE = "identity.json"  # in a folder of results
UNRECORDED = ".unrecorded"  # there, from before results are written until they are recorded
ENVIRONMENT = Path("data") / "fingerprints" / "environment.json"  # on which stages depend
LIBRARIES = (  # that results may depend on to the last bit
    "mlxtend", "networkx", "numpy", "pandas", "pillow", "scikit-learn", "scipy", "torch", "torchvision",
)  # fmt: skip
NONE = "(none)"  # a setting that one of two identities lacks


@dataclass(frozen=True)
class Identity:
    """Everything that decides a result; equal identities give equal results on equal machines.

    ``settings`` are all settings, defaults included; ``inputs`` the content hashes of all inputs, by their
    names in words ("data of mnist5k"); ``code`` a digest of all code that computes the result; ``libraries``
    the versions of `LIBRARIES`, whatever the build.
    """

    settings: Mapping[str, Any]
    seed: int | None  # None if it is part of the settings, or nothing is random
    inputs: Mapping[str, str]
    code: str
    libraries: Mapping[str, str]
    machine: Mapping[str, Any] = field(default_factory=dict)  # only `on`

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Any],
        seed: int | None,
        inputs: Mapping[str, str],
        roots: Sequence[str],
        chosen: Iterable[object] = (),
        networks: Iterable[Any] = (),
        aside: tuple[str, ...] = ASIDE,
    ) -> "Identity":
        """Return the identity of a result, with the code and the libraries of this process.

        The code consists of the modules ``roots``, the classes of ``chosen`` settings and of all settings in
        them, the ``networks`` (architectures), and all imports of these. ``aside`` as in `closure`.
        """
        networks = [*networks]
        modules = {*roots, *modules_of(*chosen), *(network.build.__module__ for network in networks)}
        made = code_digest(*sorted(modules), aside=aside)
        code = digest([made, [network.decides for network in networks]], KEY)
        return cls(settings, seed, inputs, code, environment())

    @classmethod
    def read(cls, folder: Path) -> "Identity | None":
        """Return the identity of a finished result, or None without a readable one."""
        try:
            read = cls(**json.loads((folder / FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None
        parts = (read.settings, read.inputs, read.libraries)
        return read if all(isinstance(part, dict) for part in parts) else None

    @property
    def key(self) -> str:
        """24 digits of everything, which name checkpoint, lock and the recorded run."""
        return digest(asdict(self))

    def on(self, **traits: Any) -> "Identity":
        """Return the identity on a machine with ``traits`` that change bits, such as compiled steps.

        An interrupted run resumes only if they are the same. A finished result is current whatever they are.
        """
        return replace(self, machine=traits)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a file, without the machine."""
        return {name: value for name, value in asdict(self).items() if name != "machine"}

    def differences(self, now: "Identity") -> list[str]:
        """Name what differs in the identity ``now``, in words: "settings: training.lr 0.05 -> 0.1".

        Empty if a result of this identity is current.
        """
        old, new = self.as_dict(), now.as_dict()
        settings = _changes(flat(old["settings"], empty=True), flat(new["settings"], empty=True))
        libraries = _changes(old["libraries"], new["libraries"])
        return [
            *(f"settings: {change}" for change in settings),
            *([f"seed {self.seed} -> {now.seed}"] if self.seed != now.seed else []),
            *(name for name, *_ in _differing(old["inputs"], new["inputs"])),
            *(["code"] if self.code != now.code else []),
            *(f"libraries: {change}" for change in libraries),
        ]


def changed(folder: Path, facts: Mapping[str, Any], now: Mapping[str, Sequence[str]]) -> str:
    """Name the changes since a run of the grid: "settings", "code", "settings and code" or an empty text.

    ``now`` has the digests of both by PARTITION/METHOD; a run without them, or with changed settings in
    ``runs``, has no changes. ``facts`` are the run's ``metrics.json``.
    """
    current = now.get(f"{facts['partition']}/{facts['method']}")
    if current is None or folder.name != str(facts["seed"]):
        return ""
    made = Identity.read(folder)
    old = {"settings": facts["settings"], "code": made.code if made else current[1]}
    return " and ".join(name for (name, value), new in zip(old.items(), current, strict=True) if value != new)


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Values that differ, as "name old -> new"."""
    return [f"{name} {before} -> {after}" for name, before, after in _differing(old, new)]


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, old and new value, in words, of the entries that differ."""
    return [
        (name, text(old[name]) if name in old else NONE, text(new[name]) if name in new else NONE)
        for name in sorted({*old, *new})
        if (name in old) != (name in new) or canonical(old[name]) != canonical(new[name])
    ]


def versions() -> dict[str, str]:
    """Return the versions of `LIBRARIES` with their builds, which must be the same to resume a run."""
    return {name: _version(name) for name in LIBRARIES}


def environment() -> dict[str, str]:
    """Return the versions of `LIBRARIES`.

    Builds of one version for other devices are equal: a project may be pulled on a machine with a GPU.
    """
    return {name: release.partition("+")[0] for name, release in versions().items()}


_version = cache(version)  # which reads a file
