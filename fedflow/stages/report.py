"""From results to the report."""

from pathlib import Path

from fedflow.report import build_report

CLAIMS = "claims.yaml"


def write_report(root: Path = Path()) -> Path:
    """Write ``report/`` on all results, networks and claims of a project; returns the path of its page."""
    data = root / "data"
    return build_report(
        root / "results", data / "partitions", root / "report",
        claims=root / CLAIMS, central=data / "central",
    )  # fmt: skip
