"""What catalogue commands list, kept until the code changes: importing torch takes seconds."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedflow.plugins import GROUP
from fedflow.project.digest import digest

PACKAGE = Path(__file__).parents[1]


def remembered(name: str, make: Callable[[], Any], *of: object) -> Any:
    """What ``make`` returns, as JSON has it; from the cache if nothing that it depends on changed.

    That is the package, its plug-ins, and ``of``. The cache is `FEDFLOW_CACHE`, or ``~/.cache/fedflow``, with
    a folder per checkout; without one, ``make`` is called.
    """
    cache = Path(os.environ.get("FEDFLOW_CACHE") or Path.home() / ".cache" / "fedflow")
    file, stamp = cache / "catalogue" / short(PACKAGE) / f"{name}.json", _stamp(of)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(file.read_text())
        if found["of"] == stamp:
            return found["value"]
    import fedflow.methods  # noqa: F401 # loads plug-ins, whose entries belong in every catalogue

    value = json.loads(json.dumps(make()))
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as made:
            json.dump({"of": stamp, "value": value}, made)
        Path(made.name).replace(file)
    return value


def short(*parts: object) -> str:
    """A digest for the name of a file."""
    return digest([*map(str, parts)], 12)


def _stamp(of: tuple[object, ...]) -> str:
    """Changes with any file of the package, with any installed plug-in, and with ``of``."""
    about = [str(PACKAGE), *map(str, of)]
    for file in sorted(PACKAGE.rglob("*.py")):
        facts = file.stat()
        about.append(f"{file} {facts.st_size} {facts.st_mtime_ns}")
    points = sorted(entry_points(group=GROUP))
    about += [f"{point.group} {point.name} {point.value} {_module(point.value)}" for point in points]
    return digest(about)


def _module(value: str) -> str:
    """When the files of an entry point were changed; its package is not imported."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        found = find_spec(value.partition(":")[0].partition(".")[0])
        if found is not None and found.origin is not None:
            file = Path(found.origin)
            files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
            return " ".join(f"{each} {each.stat().st_mtime_ns}" for each in files)
    return ""
