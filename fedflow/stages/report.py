"""From results to the report."""

from pathlib import Path

from fedflow.report import build_report

CLAIMS = "claims.yaml"


def write_report(root: Path = Path()) -> Path:
    """Write ``report/`` on all results and claims of a project; returns the path of its page."""
    return build_report(root / "results", root / "data" / "partitions", root / "report", claims=root / CLAIMS)
