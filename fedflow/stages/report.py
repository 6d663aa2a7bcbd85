"""From results to the report."""

from pathlib import Path

from fedflow.config import PARAMS, load_params
from fedflow.report import build_report

CLAIMS = "claims.yaml"


def write_report(root: Path = Path()) -> Path:
    """Write ``report/`` on all results and claims of a project; returns the path of its page."""
    labels = load_params(root / PARAMS).labels if (root / PARAMS).exists() else None
    results, partitions = root / "results", root / "data" / "partitions"
    return build_report(results, partitions, root / "report", claims=root / CLAIMS, labels=labels)
