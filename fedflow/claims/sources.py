"""Files of claims and published tables; imports little."""

from pathlib import Path

CLAIMS = "claims.yaml"
RECORDED = "verdicts.yaml"
COMPARISONS = "claims.csv"
RESULTS = "results.csv"
NONE = "none"  # in it: a measure without a value, as after divergence; empty: not measured
PUBLISHED = Path(__file__).parent / "published"
NO_ROWS = "no results of "  # and labels of methods, as a reason in claims.csv
OTHER_ROWS = " with the settings of params.yaml"  # after the labels, if there are runs with other settings
