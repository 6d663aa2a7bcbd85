"""The files that claims and published tables are read from; imports little."""

from pathlib import Path

CLAIMS = "claims.yaml"
RECORDED = "verdicts.yaml"
PUBLISHED = Path(__file__).parent / "published"
