"""``new``: a package with your own method or partition scheme, a dataset, or a trial."""

import keyword
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedflow.cli.printing import print_line
from fedflow.errors import BadInput, FedflowError
from fedflow.project.templates import HOME, rendered
from fedflow.project.yaml_text import YamlError, yaml_value
from fedflow.report.citing import PLACEHOLDER

MLP = "{name: mlp, options: {hidden: [32]}}"


def new(
    kind: Annotated[Literal["method", "scheme", "dataset", "trial"], typer.Argument(help="What to create.")],
    name: Annotated[str, typer.Argument(help="Its name in params.yaml, such as halfway.")],
    server: Annotated[
        bool, typer.Option("--server", help="A method whose server combines the models in its own way.")
    ] = False,
    root: Annotated[Path, typer.Option(help="Folder in which to create it.")] = Path(),
) -> None:
    """Create a package with your own method or partition scheme, a dataset, or a small trial.

    A package has code that runs, a test and pyproject.toml. Example: `fedflow new method halfway`, then
    `pip install -e fedflow-halfway`: it then works in params.yaml, `fedflow methods`, MLflow and reports. A
    trial is a folder with a params.yaml that runs as it is; a dataset is a trial on your own samples, with
    the script that writes them. docs/adding.md explains the hooks.
    """
    label = name.title().replace("_", "")  # the name of a class
    if not re.fullmatch("[a-z]([a-z0-9_]*[a-z0-9])?", name):
        raise BadInput("name", name, "lower-case letters, digits and _, first a letter, last no _")
    if keyword.iskeyword(name) or keyword.iskeyword(label) or not _is_text(name):
        raise BadInput("name", name, "a name that has no other meaning in Python and YAML")
    if not {name, label}.isdisjoint(_registered(kind)):
        raise BadInput("name", name, f"a name that no other {kind} has")
    if server and kind != "method":
        raise BadInput("--server", kind, "a method")
    package = kind in ("method", "scheme")
    folder = root / (f"fedflow-{name}" if package else name)
    quoted = shlex.quote(str(folder))
    values = {"name": name, "kind": kind, "label": label}
    values |= dict(zip(("authors", "title"), PLACEHOLDER))
    if package:
        template = f"{kind}_server" if server else kind
        code, test = _template(template), _template(f"{template}_test")
        files = {"pyproject.toml": _template("project"), f"fedflow_{name}.py": code, f"test_{name}.py": test}
        following = f"pip install -e {quoted}, then pytest {quoted}"
    else:
        files = {"params.yaml": _template("trial"), ".gitignore": rendered(".gitignore")}
        following = "fedflow sweep && fedflow report"
        values |= {"model": MLP, "data": "  digits: {source: digits}", "name": "digits"}
    if kind == "dataset":
        files[f"make_{name}.py"] = _template("dataset")
        values |= {"data": f"  {name}: {{source: npz, path: {name}.npz}}", "name": name}
        following = f"python make_{name}.py && {following}"
    following = following if package else f"cd {quoted} && {following}"
    if folder.exists():
        raise FedflowError(f"{folder} exists; choose another name, or delete it")
    try:
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text.format(**values))
    except OSError as error:
        raise FedflowError(f"cannot write {folder}: {error.strerror or error}") from error
    for file in files:
        print_line(folder / file)
    print_line(f"next: {following}")


def _registered(kind: str) -> Iterable[str]:
    """Names and labels that are taken."""
    from fedflow.methods import METHODS
    from fedflow.partition import SCHEMES

    taken = {"method": [*METHODS, *(method.label for method in METHODS.values())], "scheme": [*SCHEMES]}
    return taken.get(kind, ())


def _is_text(name: str) -> bool:
    """True for a name that YAML reads as text without quotes, unlike ``null`` and ``on``."""
    try:
        return yaml_value(name) == name
    except YamlError:
        return False


def _template(name: str) -> str:
    return (HOME / "new" / f"{name}.txt").read_text()
