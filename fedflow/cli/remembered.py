"""A cache of catalogues, kept until the code changes, because importing torch takes seconds."""

import contextlib
import json
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedflow.files import cache, replace_text
from fedflow.plugins import GROUP
from fedflow.project.digest import digest

PACKAGE = Path(__file__).parents[1]


def remembered(name: str, make: Callable[[], Any], *of: object) -> Any:
    """The result of ``make`` as JSON, cached until the package, its plug-ins, or ``of`` change.

    The cache is `FEDFLOW_CACHE`, or ``~/.cache/fedflow``, with a folder per checkout; if it cannot be read or
    written, ``make`` is called.
    """
    file, stamp = cache() / "catalogue" / short(PACKAGE) / f"{name}.json", _stamp(of)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        stored = json.loads(file.read_text())
        if stored["of"] == stamp:
            return stored["value"]
    import fedflow.methods  # noqa: F401 # loads plug-ins, whose entries belong in every catalogue

    value = json.loads(json.dumps(make()))
    with contextlib.suppress(OSError):
        replace_text(file, json.dumps({"of": stamp, "value": value}))
    return value


def short(*parts: object) -> str:
    """A digest for a file name."""
    return digest([*map(str, parts)], 12)


def _stamp(of: tuple[object, ...]) -> str:
    """A digest of the files of the package and of installed plug-ins, and of ``of``."""
    parts = [str(PACKAGE), *map(str, of)]
    for file in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.json")]):
        facts = file.stat()
        parts.append(f"{file} {facts.st_size} {facts.st_mtime_ns}")
    points = sorted(entry_points(group=GROUP))
    parts += [f"{point.group} {point.name} {point.value} {_module(point.value)}" for point in points]
    return digest(parts)


def _module(value: str) -> str:
    """Times of the files of an entry point, whose package is not imported."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        spec = find_spec(value.partition(":")[0].partition(".")[0])
        if spec is not None and spec.origin is not None:
            file = Path(spec.origin)
            files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
            return " ".join(f"{path} {path.stat().st_mtime_ns}" for path in files)
    return ""
