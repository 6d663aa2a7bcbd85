"""The code of a result: a digest of its modules and all their imports.

A run is resumed, a partition kept and a stage of ``dvc.yaml`` skipped only while this digest is the same.
Imports are read from the sources, also inside functions. ``from package import name`` leads to the module
that defines the name, not to all imports of the package's ``__init__``: registered methods, schemes and
networks count only if they are used. Comments, docstrings, layout and the version of Python do not count,
because the digest is of syntax trees.
"""

import ast
import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedflow.files import cache as user_cache
from fedflow.files import replace_text
from fedflow.project.digest import SETTINGS, digest

PACKAGE = Path(__file__).parents[1]

# Packages and modules on which no result depends: they parse settings, lock, report or record.
ASIDE = ("config", "errors", "pictures", "project", "report", "stages.driver", "tracking")
INSTALLED = {"site-packages", "dist-packages"}  # folders; Debian and Colab have the second
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # fields with statements, in syntax trees
PUBLIC = "fedflow"  # `import fedflow as ff`, as plug-ins import it
# Their imports make data and partitions, which runs identify by content.
LOADERS = ("fedflow.data.params", "fedflow.data.prepared", "fedflow.partition.partition")


def code_digest(*modules: str, aside: tuple[str, ...] = ASIDE) -> str:
    """16 hexadecimal digits of the code in the `closure` of these modules."""
    files = closure(*modules, aside=aside)
    code = digest({name: _content(file) for name, file in files.items()}, 16)
    _keep()
    return code


def plugin_code(*modules: str) -> str | None:
    """Like `code_digest`, but of the code outside fedflow only.

    Returns None for modules of fedflow, and "" if a module is in no file, such as a notebook.
    """
    outside = {name for name in modules if _top(name) != PUBLIC}
    if not outside:
        return None
    files = {name: file for name, file in closure(*outside).items() if _top(name) != PUBLIC}
    return digest({name: _content(file) for name, file in files.items()}, 16) if outside <= {*files} else ""


def modules_of(*settings: object) -> list[str]:
    """The modules that define these settings and the settings in their fields."""
    modules: set[str] = set()
    left = list(settings)
    while left:
        value = left.pop()
        if is_dataclass(value) and not isinstance(value, type):
            modules.add(type(value).__module__)
            left += [getattr(value, field.name) for field in fields(value)]
        elif isinstance(value, list | tuple):
            left += value
        elif isinstance(value, dict):
            left += value.values()
    return sorted(modules)


@cache
def closure(*modules: str, aside: tuple[str, ...] = ASIDE) -> Mapping[str, Path]:
    """These modules and their direct and indirect imports, with their files.

    Only modules of fedflow, of the packages of ``modules``, and next to packages that are not installed
    are followed; PyTorch and the parts of fedflow in ``aside`` are not. `LOADERS` are not followed
    unless they are among ``modules``. Raises `ModuleNotFoundError` for a missing module of fedflow.
    """
    files: dict[str, Path] = {}
    followed = {"fedflow", *(_top(name) for name in modules)} - {"torch"}
    homes = {_home(top) for top in followed} - {None}
    left = set(modules)
    while left:
        name = left.pop()
        file = _file(name)
        skipped = any(f"{name}.".startswith(f"{PUBLIC}.{part}.") for part in aside)
        if file is None and name in modules and _top(name) == "fedflow":
            raise ModuleNotFoundError(f"there is no module {name}")
        if file is None or skipped or (_top(name) not in followed and _home(_top(name)) not in homes):
            continue
        files[name] = file
        if name in modules or name not in LOADERS:
            left |= set(_imports(name)) - files.keys()
    return files


def _top(module: str) -> str:
    return module.partition(".")[0]


@cache
def _home(top: str) -> Path | None:
    """The folder of a module or package of the user's project; None for fedflow and installed ones."""
    module = sys.modules.get(top)
    paths = [*getattr(module, "__path__", ()), getattr(module, "__file__", None)]
    home = Path(paths[0]).parent if paths[0] else None
    installed = home and not INSTALLED.isdisjoint(home.parts)
    return None if top == "fedflow" or installed else home


@cache
def _file(module: str) -> Path | None:
    """The source of a module, or None for names within modules and for modules without Python source."""
    top, *rest = module.split(".")
    package = sys.modules.get(top)
    if not rest and not hasattr(package, "__path__"):
        file = getattr(package, "__file__", None)
        return Path(file) if file else None
    for folder in getattr(package, "__path__", ()):
        path = Path(folder, *rest)
        for file in (path / "__init__.py", path.parent / f"{path.name}.py"):
            if file.is_file():
                return file
    return None


class Import(NamedTuple):
    """A name that a source imports; a ``name`` of "" is the module ``base``."""

    level: int  # of a relative import
    base: str
    name: str
    called: str
    top: bool  # not within a block


class Source(NamedTuple):
    """The facts of a source for `code_digest`: parsed once, then stored in the user's cache."""

    key: str  # digest of its bytes
    content: str  # digest without comments and docstrings
    imports: list[Import]  # when it runs
    values: dict[str, str]  # of a stub: the other names of imports, as in ``Training = LocalTraining``


_NEW: dict[str, Source] = {}  # sources that are not stored yet


@cache
def _source(file: Path) -> Source:
    """A source of fedflow from the cache if it is unchanged, else parsed."""
    code = file.read_bytes()
    key = hashlib.blake2b(code).hexdigest()
    if (stored := _stored().get(str(file))) and stored[0] == key:
        return Source(key, stored[1], [Import(*line) for line in stored[2]], stored[3])
    source = _parsed(key, ast.parse(code), stub=file.suffix == ".pyi")
    if file.is_relative_to(PACKAGE):
        _NEW[str(file)] = source
    return source


@cache
def _stored() -> dict[str, Any]:
    """The sources in the cache, by file."""
    with suppress(OSError, ValueError):
        stored = json.loads(_cache_file().read_text())
        return stored if isinstance(stored, dict) else {}
    return {}


def _cache_file() -> Path:
    """The cache of this installation, which depends on this module and the version of Python."""
    made = [str(PACKAGE), Path(__file__).read_text(), sys.version]
    return user_cache() / "sources" / f"{digest(made, SETTINGS)}.json"


def _keep() -> None:
    """Store the new sources, if the cache can be written to."""
    if _NEW:
        _stored().update(_NEW)
        _NEW.clear()
        with suppress(OSError):
            replace_text(_cache_file(), json.dumps(_stored()))


def _parsed(key: str, tree: ast.Module, stub: bool) -> Source:
    """A source from its syntax tree, which loses its docstrings."""
    statements = _statements(tree)
    for node in (tree, *statements):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    imports = []
    for node in statements:
        if isinstance(node, ast.Import):
            for alias in node.names:
                used = _used(tree, alias.asname or PUBLIC) if alias.name == PUBLIC else []
                imports += [Import(0, alias.name, name, "", False) for name in used or [""]]
        elif isinstance(node, ast.ImportFrom):
            at = node.level, node.module or ""
            imports += [Import(*at, a.name, a.asname or a.name, node in tree.body) for a in node.names]
    assigned = [node for node in tree.body if stub and isinstance(node, ast.Assign)]
    values = {ast.unparse(node.targets[0]): ast.unparse(node.value) for node in assigned}
    return Source(key, digest(_form(tree)), imports, values)


def _content(file: Path) -> str:
    """A digest of a source, without comments and docstrings."""
    return _source(file).content


def _form(node: object) -> str:
    """A syntax tree as text, without empty fields: versions of Python differ in those."""
    if isinstance(node, ast.AST):
        fields = (f"{n}={_form(v)}" for n, v in ast.iter_fields(node) if v is not None and v != [])
        return f"{type(node).__name__}({','.join(fields)})"
    return f"[{','.join(map(_form, node))}]" if isinstance(node, list) else repr(node)


@cache
def _imports(module: str) -> tuple[str, ...]:
    """The modules that the source of a module imports when it runs."""
    file = _file(module)
    imports = [] if file is None else _source(file).imports
    return tuple(_definer(_base(line, module), line.name) if line.name else line.base for line in imports)


def _statements(node: ast.AST) -> list[ast.AST]:
    """All statements within a node, except those for type checkers."""
    statements = []
    for block in BLOCKS:
        for child in getattr(node, block, ()):
            if not (isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")):
                statements += [child, *_statements(child)]
    return statements


def _base(imported: Import, module: str) -> str:
    """The module that an import statement in ``module`` imports from."""
    if not imported.level:
        return imported.base
    file = _file(module)
    steps = imported.level - (file is not None and file.name == "__init__.py")
    parts = module.split(".")
    return ".".join([*parts[: len(parts) - steps], *([imported.base] if imported.base else [])])


def _used(tree: ast.Module, name: str) -> list[str]:
    """The attributes in a source of the module that is called ``name`` there, such as ``ff``."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return sorted({n.attr for n in nodes if isinstance(n.value, ast.Name) and n.value.id == name})


@cache
def _definer(base: str, name: str) -> str:
    """The module that defines ``name`` in ``from base import name``, or ``name`` if it is a module."""
    if _file(f"{base}.{name}"):
        return f"{base}.{name}"
    file = _file(base)
    if file is not None and file.name == "__init__.py":
        if base == PUBLIC:  # imports its names lazily
            file = file.with_suffix(".pyi")
            name = _source(file).values.get(name, name)
        for line in _source(file).imports:
            if line.top and line.called == name:
                return _definer(_base(line, base), line.name)
    return base
