"""Networks of other packages and of the project, by import path: ``mypackage.models:Net``."""

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from fedflow.errors import BadInput, reason

PATH = "a class or function at package.module:Name"


def is_path(name: str) -> bool:
    """True for an import path, which no registered network has as its name."""
    return ":" in name


def imported(path: str, field: str) -> Callable[..., Any]:
    """The class or function at an import path, of an installed package or of the working directory.

    Raises `BadInput` of ``field`` for a path that leads to nothing else.
    """
    module, _, name = path.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # last: the project hides no installed package
    try:
        made: Any = getattr(import_module(module), name)
    except Exception as error:  # anybody's code
        raise BadInput(field, path, f"{PATH} ({type(error).__name__}: {reason(error)})") from error
    if not (inspect.isclass(made) or inspect.isfunction(made)):  # code that a run's identity can follow
        raise BadInput(field, path, f"{PATH}, not a {type(made).__name__}")
    return made
