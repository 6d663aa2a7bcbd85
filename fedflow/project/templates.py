"""The files that `fedflow init` writes, compared with the files of a project.

The first line of dvc.yaml and prefect.yaml has the version of fedflow that wrote the file, and a digest of
the other lines, so that an upgrade recognizes edited files.
"""

import hashlib
import re
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from fedflow import __version__
from fedflow.errors import FedflowError
from fedflow.files import naming

HOME = Path(__file__).parents[1] / "templates"
# Files of a project, and their templates, which have other names: DVC runs every dvc.yaml that it finds.
OWN = {"params.yaml": "params.yaml", ".gitignore": "gitignore"}  # written once: the user's from then on
KEPT = {"dvc.yaml": "stages.yaml", "prefect.yaml": "deployments.yaml"}  # upgraded, unless they were edited
PLOTS = Path(".dvc") / "plots" / "curves.json"  # the template that the plots of dvc.yaml name
HEAD = "# Written by fedflow {} ({}); `fedflow init --upgrade` rewrites this file unless it was edited.\n"
WRITTEN = re.compile(r"# Written by fedflow (\S+) \((\w+)\);.*\n")


def rendered(name: str) -> str:
    """Return the text of a project's file as this version of fedflow writes it."""
    body = _template(name)
    return HEAD.format(__version__, _digest(body)) + body if name in KEPT else body


def write(root: Path, *names: str) -> None:
    """Write these files of a project."""
    for name in names:
        with naming(root / name):
            (root / name).write_text(rendered(name))


def check_present(root: Path, name: str) -> None:
    """Raise `FedflowError` if a folder lacks this file of a project."""
    if not (root / name).is_file():
        how = "`fedflow init FOLDER` makes a project, `fedflow init --upgrade` adds what one lacks"
        raise FedflowError(f"{root / name}: no such file; {how}")


def write_plots(root: Path) -> None:
    """Write the template of plots, if DVC is initialized and lacks it."""
    file = root / PLOTS
    if (root / ".dvc").is_dir() and not file.exists():
        file.parent.mkdir(exist_ok=True)
        file.write_text((HOME / file.name).read_text())


@dataclass(frozen=True)
class ProjectFile:
    """A file of a project, compared with the file that this version of fedflow writes.

    Its ``state`` is "same"; "older", if this version writes other text; "edited", if the user edited it; or
    "both".
    """

    name: str
    text: str
    version: str | None  # of fedflow, or None without it in the first line
    state: str

    @classmethod
    def read(cls, file: Path) -> "ProjectFile":
        """Read a file that `fedflow init` writes."""
        text, new = file.read_text(), _template(file.name)
        head = WRITTEN.match(text)
        body, version, digest = (text[head.end() :], *head.groups()) if head else (text, None, None)
        edited, older = digest != _digest(body), digest != _digest(new)
        state = "same" if body == new else "older" if not edited else "both" if older else "edited"
        return cls(file.name, text, version, state)

    @property
    def difference(self) -> str:
        """The difference from the file that this version writes."""
        new = rendered(self.name).splitlines(keepends=True)
        old = self.text.splitlines(keepends=True)
        return "".join(unified_diff(old, new, self.name, f"{self.name} of fedflow {__version__}"))


def _template(name: str) -> str:
    return (HOME / (OWN | KEPT)[name]).read_text()


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
