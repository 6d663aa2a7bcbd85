"""A hash of the library's own sources: what was computed by older code is not gone on with."""

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path

import torch


@cache
def code_digest(*parts: str) -> str:
    """16 hexadecimal digits of the files ``parts``, of all Python files in them, and of PyTorch's version.

    Parts are named as in ``fedflow/``: "seeding.py", "models".
    """
    root = Path(__file__).parent
    digest = hashlib.blake2b(torch.__version__.encode(), digest_size=8)
    for part in parts:
        for file in [root / part] if part.endswith(".py") else sorted((root / part).rglob("*.py")):
            digest.update(f"{file.relative_to(root).as_posix()} {file.stat().st_size}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def module_digest(module: str, within: str) -> str:
    """16 hexadecimal digits of the sources of `imported`."""
    digest = hashlib.blake2b(digest_size=8)
    for name, file in sorted(imported(module, within).items()):
        digest.update(f"{name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def imported(module: str, within: str) -> dict[str, Path]:
    """The module, and all modules ``within`` a package that it imports, directly or not, with their files.

    They are named as in an import statement: "fedflow.methods.clustered.ifca". What the package itself
    imports does not count.
    """
    found: dict[str, Path] = {}
    waiting = {module}
    while waiting:
        name = waiting.pop()
        try:
            spec = find_spec(name)
        except ModuleNotFoundError:  # it is a name within a module
            continue
        if spec is not None and spec.origin is not None:
            found[name] = Path(spec.origin)
            names = _imports(found[name].read_bytes(), name)
            waiting |= {each for each in names if each.startswith(f"{within}.")} - found.keys()
    return found


def _imports(source: bytes, module: str) -> Iterator[str]:
    """All modules, and all names from modules, that the source of a module imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), module.rpartition(".")[0])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
