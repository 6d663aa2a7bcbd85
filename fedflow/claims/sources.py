"""Files of claims and published tables; imports little."""

from pathlib import Path

CLAIMS = "claims.yaml"
RECORDED = "verdicts.yaml"
RESULTS = "results.csv"
PUBLISHED = Path(__file__).parent / "published"
