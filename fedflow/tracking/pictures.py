"""The pictures of a clustered run, as those of the report."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedflow.report.groups import Grouping


def draw_groups(folder: Path, grouping: "Grouping") -> None:
    """Write ``assignment.png``; where the server compares clients, ``proximity.png``, ``embedding.png``."""
    from fedflow.report.groups import pictures_of  # draws with matplotlib, which takes long to import

    for name, _, draw in pictures_of(grouping):
        draw(grouping, name).png(folder / f"{name}.png")
