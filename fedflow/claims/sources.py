"""The files that claims and published tables are read from; imports little."""

from pathlib import Path

CLAIMS = "claims.yaml"
PUBLISHED = Path(__file__).parent / "published"
