"""The code of a result: a digest of its modules and all their imports.

A run is resumed, a partition kept and a stage of ``dvc.yaml`` skipped only while this digest is the same.
Imports are read from the sources, also inside functions. ``from package import name`` leads to the module
that defines the name, not to all imports of the package's ``__init__``: registered methods, schemes and
networks count only if they are used. Comments, docstrings, layout and the version of Python do not count,
because the digest is of syntax trees.
"""

import ast
import sys
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

from fedflow.project.digest import digest

# Packages on which no result depends: they parse settings, report or record.
ASIDE = ("config", "errors", "pictures", "project", "report", "tracking")
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # fields with statements, in syntax trees
PUBLIC = "fedflow"  # `import fedflow as ff`, as plug-ins import it
# Their imports make data and partitions, which runs identify by content.
LOADERS = ("fedflow.data.params", "fedflow.data.prepared", "fedflow.partition.partition")


def code_digest(*modules: str, aside: tuple[str, ...] = ASIDE) -> str:
    """16 hexadecimal digits of the code in the `closure` of these modules."""
    files = closure(*modules, aside=aside)
    return digest({name: _content(file) for name, file in files.items()}, 16)


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


def closure(*modules: str, aside: tuple[str, ...] = ASIDE) -> dict[str, Path]:
    """These modules and their direct and indirect imports, with their files.

    Only modules of fedflow and of the packages of ``modules`` are followed, and those beside packages that
    are not installed; PyTorch and the packages of fedflow in ``aside`` are not. `LOADERS` are not followed
    unless they are among ``modules``. Raises `ModuleNotFoundError` for a missing module of fedflow.
    """
    files: dict[str, Path] = {}
    followed = {"fedflow", *(_top(name) for name in modules)} - {"torch"}
    homes = {_home(top) for top in followed} - {None}
    left = set(modules)
    while left:
        name = left.pop()
        file = _file(name)
        skipped = name.startswith("fedflow.") and name.split(".")[1] in aside
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
    places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None)]
    home = Path(places[0]).parent if places[0] else None
    return None if home is None or top == "fedflow" or "site-packages" in home.parts else home


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


@cache
def _tree(file: Path) -> ast.Module:
    """The syntax tree of a source, without docstrings."""
    tree = ast.parse(file.read_bytes())
    for node in (tree, *_statements(tree)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
    return tree


@cache
def _content(file: Path) -> str:
    """A digest of a source, without comments and docstrings."""
    return digest(_form(_tree(file)))


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
    nodes = [] if file is None else _statements(_tree(file))
    modules: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                used = _used(file, alias.asname or PUBLIC) if file and alias.name == PUBLIC else []
                modules += [_definer(PUBLIC, name) for name in used] or [alias.name]
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, module)
            modules += [_definer(base, alias.name) for alias in node.names]
    return tuple(modules)


def _statements(node: ast.AST) -> list[ast.AST]:
    """All statements within a node, except those for type checkers."""
    statements = []
    for block in BLOCKS:
        for child in getattr(node, block, ()):
            if not (isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")):
                statements += [child, *_statements(child)]
    return statements


def _base(node: ast.ImportFrom, module: str) -> str:
    """The module that an import statement in ``module`` imports from."""
    if not node.level:
        return node.module or ""
    file = _file(module)
    steps = node.level - (file is not None and file.name == "__init__.py")
    parts = module.split(".")
    return ".".join([*parts[: len(parts) - steps], *([node.module] if node.module else [])])


@cache
def _used(file: Path, name: str) -> list[str]:
    """The attributes in a source of the module that is called ``name`` there, such as ``ff``."""
    nodes = (node for node in ast.walk(_tree(file)) if isinstance(node, ast.Attribute))
    return sorted({n.attr for n in nodes if isinstance(n.value, ast.Name) and n.value.id == name})


@cache
def _values(stub: Path) -> dict[str, str]:
    """The other names of imports in a stub: ``Training = LocalTraining``."""
    assigned = [node for node in _tree(stub).body if isinstance(node, ast.Assign)]
    return {ast.unparse(node.targets[0]): ast.unparse(node.value) for node in assigned}


@cache
def _definer(base: str, name: str) -> str:
    """The module that defines ``name`` in ``from base import name``, or ``name`` if it is a module."""
    if _file(f"{base}.{name}"):
        return f"{base}.{name}"
    file = _file(base)
    if file is not None and file.name == "__init__.py":
        if base == PUBLIC:  # imports its names lazily
            file = file.with_suffix(".pyi")
            name = _values(file).get(name, name)
        for node in _tree(file).body:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return _definer(_base(node, base), alias.name)
    return base
