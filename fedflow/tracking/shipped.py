"""The code of the networks, which every recorded model holds as one file.

MLflow installs the requirements of a model from a package index, where the name fedflow belongs to another
project, so that no model requires it. The copied package has a digest in its name: models that were recorded
with different code can be loaded in one process, also where fedflow is installed.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import fedflow
from fedflow.models import architecture
from fedflow.project.digest import digest

ENTRIES = ("fedflow.models", "fedflow.models.recorded")  # the modules by which a network is built
IMPORT = re.compile(r"^(\s*from )fedflow(\.[\w.]+)(?= import )", re.MULTILINE)


def write_code(folder: Path) -> Path:
    """Write the code of the networks to ``folder``; returns the file, ``<name of its package>.zip``."""
    name, sources = _code()
    file = folder / f"{name}.zip"
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:
        for path, text in sources.items():
            archive.writestr(ZipInfo(f"{name}/{path}"), text, ZIP_DEFLATED)
    return file


def package_of(name: str) -> str | None:
    """The package that defines this network, or None if fedflow makes it, also with a library."""
    network = architecture(name)
    return None if network.package == "fedflow" or network.library else network.package


@cache
def _code() -> tuple[str, Mapping[str, str]]:
    """The name of the package in recorded models, and the text of its files."""
    home = Path(fedflow.__file__).parent
    texts: dict[str, str] = {}
    seen, left = {*ENTRIES}, [*ENTRIES]
    while left:
        path = home.joinpath(*left.pop().split(".")[1:])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        text = texts[file.relative_to(home).as_posix()] = file.read_text()
        new = {f"fedflow{module}" for _, module in IMPORT.findall(text)} - seen
        seen |= new
        left += new
    name = f"fedflow_{digest(texts, 8)}"
    renamed = {path: IMPORT.sub(rf"\1{name}\2", text) for path, text in sorted(texts.items())}
    return name, {"__init__.py": ""} | renamed
