"""From results to the report."""

from pathlib import Path

from fedflow.config import PARAMS, load_params
from fedflow.report import build_report
from fedflow.report.collect import collect_runs
from fedflow.report.paper import write_paper

CLAIMS = "claims.yaml"


def write_report(root: Path = Path()) -> Path:
    """Write ``report/`` on all results, networks and claims of a project; returns the path of its page."""
    data, params = root / "data", load_params(root / PARAMS) if (root / PARAMS).exists() else None
    return build_report(
        root / "results", data / "partitions", root / "report",
        claims=root / CLAIMS, central=data / "central", labels=params.labels if params else None,
        outcomes=root / "outcomes", procedures=params.procedure_entries if params else None,
    )  # fmt: skip


def write_for_paper(root: Path = Path(), figures: str | None = None) -> list[Path]:
    """Write ``paper/`` on all results of a project: LaTeX tables, references, and figures in this format."""
    params = load_params(root / PARAMS) if (root / PARAMS).exists() else None
    runs = collect_runs(root / "results", params.labels if params else None)
    return write_paper(runs, root / "paper", figures)
