"""``claims.csv``, a row per comparison of every claim, and ``claims.md``, a table to paste."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedflow.claims.results import Recorded, origin
from fedflow.claims.sources import COMPARISONS
from fedflow.claims.values import Values
from fedflow.claims.verdicts import Judged
from fedflow.files import replace_text
from fedflow.finished.run import Run
from fedflow.finished.tables import write_csv


def write_claims(judged: Sequence[Judged], out_dir: Path, recorded: Recorded | None = None) -> None:
    """Write ``claims.csv``, a row per comparison, and ``claims.md``, a table to paste, or remove both.

    ``recorded`` are facts on the runs from MLflow, whose commits, locks and processors are in the first.
    """
    csv, page = out_dir / COMPARISONS, out_dir / "claims.md"
    if not judged:
        csv.unlink(missing_ok=True)
        page.unlink(missing_ok=True)
        return
    write_comparisons(judged, csv, recorded or {})
    lines = ["| claim | source | verdict | numbers |", "|---|---|---|---|"]
    for entry in judged:
        numbers = [f"{c.partition}, {c.statement}: {c.numbers}" for c in entry.shown]
        numbers = [text for text in (*numbers, entry.counts, entry.claim.test) if text]
        cells = (entry.claim.claim, entry.claim.source, f"**{entry.verdict}**", "<br>".join(numbers))
        plain = (" ".join(cell.split()).replace("|", r"\|") for cell in cells)  # YAML may fold lines
        lines.append(f"| {' | '.join(plain)} |")
    replace_text(page, "\n".join(lines) + "\n")


def write_comparisons(judged: Iterable[Judged], file: Path, recorded: Recorded) -> Path:
    """Write a row per comparison of every claim, with the origin of its runs; returns the file."""
    write_csv(pd.DataFrame([row for entry in judged for row in _rows(entry, recorded)]), file)
    return file


def _rows(judged: Judged, recorded: Recorded) -> list[dict[str, Any]]:
    """A row per comparison of a claim, or a single row without comparisons."""
    claim = judged.claim
    head = {"id": claim.id, "source": claim.source, "claim": claim.claim, "verdict": judged.verdict}
    return [
        head
        | {
            "partition": result.partition,
            "comparison": result.statement,
            "measure": result.measure.text,
            "holds": result.verdict,
            "seeds": len(result.difference.values) if result.difference else 0,
            **_moments("", result.values[0] if result.values else None),
            **_moments("other_", result.values[-1] if len(result.values) > 1 else None),
            "difference": result.difference.mean if result.difference and len(result.values) > 1 else None,
            "low": result.low,
            "high": result.high,
            "adjusted": result.adjusted,
            "reason": result.reason,
            "note": result.note,
            **_origins(result.runs, recorded),
        }
        for result in judged.comparisons
    ] or [head | {"reason": claim.test}]


def _origins(runs: Iterable[Run], recorded: Recorded) -> dict[str, str]:
    """The days, commits, locks and processors of runs."""
    origins = [origin(run, recorded) for run in runs]
    return {
        name: "; ".join(sorted({facts[name] for facts in origins} - {""}))
        for name in ("date", "commit", "lock", "processor")
    }


def _moments(prefix: str, values: Values | None) -> dict[str, float | None]:
    """Mean and sample std over seeds."""
    stat = values and values.stat
    std = stat.std if stat and len(stat.values) > 1 else None
    return {f"{prefix}mean": stat.mean if stat else None, f"{prefix}std": std}
