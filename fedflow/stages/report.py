"""From results to the report."""

from pathlib import Path

from fedflow.config import PARAMS, load_params
from fedflow.report import build_report

CLAIMS = "claims.yaml"


def write_report(root: Path = Path()) -> Path:
    """Write ``report/`` on all results, networks and claims of a project; returns the path of its page."""
    data, params = root / "data", load_params(root / PARAMS) if (root / PARAMS).exists() else None
    return build_report(
        root / "results", data / "partitions", root / "report",
        claims=root / CLAIMS, central=data / "central", labels=params.labels if params else None,
        outcomes=root / "outcomes", procedures=params.procedure_entries if params else None,
    )  # fmt: skip
