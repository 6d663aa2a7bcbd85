"""Files that the report reads besides results; imports little."""

from pathlib import Path

from fedflow.claims.sources import PUBLISHED

TRIED = "tuning"  # folder with the scores of `fedflow tune`


def templates() -> list[Path]:
    """The files of this package that are not code, and the published tables."""
    files = [*Path(__file__).parent.iterdir(), *PUBLISHED.iterdir()]
    return sorted(file for file in files if file.is_file() and file.suffix != ".py")


def score_files(folder: Path) -> list[Path]:
    """The tables of scores below ``folder``, one for each partition and method."""
    return sorted(folder.glob("*/*.csv"))
