"""Writes the report and the files for a paper."""

import subprocess
import sys
from collections.abc import Iterable
from datetime import date
from functools import partial
from pathlib import Path

from fedflow.claims.claims import Claim, load_claims
from fedflow.claims.comparisons import write_comparisons
from fedflow.claims.matching import matches
from fedflow.claims.recorded import write_verdicts
from fedflow.claims.results import read_results, write_results
from fedflow.claims.sources import CLAIMS, COMPARISONS, RESULTS
from fedflow.claims.verdicts import judge
from fedflow.config import PARAMS, Loaded, load_params
from fedflow.errors import BadInput, FedflowError
from fedflow.files import finished_folders
from fedflow.finished.collect import collect_runs
from fedflow.finished.collect_outcomes import collect_outcomes
from fedflow.project.terminal import say
from fedflow.report.compared import Recorded
from fedflow.report.page import build_report
from fedflow.report.paper import write_paper
from fedflow.report.sources import TRIED
from fedflow.stages.elsewhere import as_text, changed_sections, joined
from fedflow.stages.grid import current
from fedflow.tracking.models import attach_to_sweep
from fedflow.tracking.record import git

NO_TESTS = 5  # exit status of pytest if it finds none
COLLECT = ("--rootdir=.", "-o", "addopts=", "-p", "no:cacheprovider", "--collect-only", "-q")


def write_report(root: Path = Path(), sweep: str | None = None, grid: bool = False) -> Path:
    """Write ``report/`` on all results, networks and claims of a project; returns the path of its page.

    With ``grid``, without runs outside of the grid. This user's parent runs in MLflow named ``sweep`` get the
    page, too.
    """
    data, params = root / "data", load_params(root / PARAMS) if (root / PARAMS).exists() else None
    page = build_report(
        root / "results",
        data / "partitions",
        root / "report",
        claims=root / CLAIMS,
        central=data / "central",
        labels=params.labels if params else None,
        outcomes=root / "outcomes",
        procedures=params.procedure_entries if params else None,
        recorded=_recorded(root),
        tried=root / TRIED,
        now=_current(params, root) if params else None,
        join=(lambda here: joined(params, root, here)[0]) if params else None,
        changed=changed_sections(params, root) if params else None,
        grid=grid,
    )
    if sweep is not None and (why := attach_to_sweep(sweep, [page], "report", root)):
        say(f"{why}: the page is not attached")
    return page


def _current(params: Loaded, root: Path) -> dict[str, tuple[str, str]]:
    """The current settings and code of the grid; an error is printed, as the report does not need them."""
    try:
        return current(params, root)
    except FedflowError as error:
        say(f"the report cannot mark runs with outdated settings or code: {error}")
        return {}


def record_verdicts(root: Path = Path()) -> list[Path]:
    """Update ``verdicts.yaml``, ``claims.csv`` and ``results.csv`` from all results; returns their paths.

    Rows of ``results.csv`` that hold count as results (`joined`).
    """
    params = load_params(root / PARAMS)
    entries = params.procedure_entries
    rows = [row for outcome in collect_outcomes(root / "outcomes", entries) for row in outcome.rows]
    needed = not rows and not read_results(root)
    here = [*collect_runs(root / "results", params.labels, needed=needed), *rows]
    runs, outdated = joined(params, root, here)
    if outdated and not runs:
        raise FedflowError(
            f"{root / RESULTS}: all rows have outdated settings or code, and no run is finished here; "
            "run `fedflow sweep` first"
        )
    registered = {name: procedure for name, (procedure, _) in entries.items()}
    claims = load_claims(root / CLAIMS)
    check_tests(claims, root)
    changed = changed_sections(params, root)
    judged = judge(claims, runs, params.labels, registered, changed)
    matched = [*matches(runs)]
    facts = _recorded(root)
    written = [write_results(root, runs, claims, facts, matched, partial(as_text, changed=changed))]
    if claims:
        written.append(write_verdicts(root, judged, date.today().isoformat(), facts, matched))
        written.append(write_comparisons(judged, root / COMPARISONS, facts))
    if outdated:
        say(f"{root / RESULTS}: removed {len(outdated)} rows with outdated settings or code")
    return written


def has_results(root: Path) -> bool:
    """True if a run or an outcome of a procedure is finished here."""
    return any(finished_folders(root / "results", 2)) or any(finished_folders(root / "outcomes", 1))


def check_tests(claims: Iterable[Claim], root: Path) -> None:
    """Raise `BadInput` for a claim with a test that pytest does not collect in the repository of ``root``."""
    named = {test: claim.id for claim in claims for test in claim.tests}
    if not named:
        return
    top = Path(git(root, "rev-parse", "--show-toplevel") or root)
    files = {test.partition("::")[0] for test in named}
    there = [file for file in sorted(files) if (top / file).is_file()]
    command = [sys.executable, "-m", "pytest", *COLLECT, *there]
    done = subprocess.run(command, cwd=top, capture_output=True, text=True, check=False)
    collected = {line.partition("[")[0] for line in done.stdout.splitlines()} if there else set()
    if there and done.returncode not in (0, NO_TESTS):
        lines = f"{done.stdout}\n{done.stderr}".strip().splitlines() or ["no message"]
        why = next((line for line in lines if line.startswith(("E  ", "ERROR "))), lines[-1])
        raise FedflowError(f"pytest cannot collect the tests that claims name: {why.strip()}")
    for test, claim in named.items():
        if test.partition("[")[0] not in collected:
            raise BadInput(f"claim {claim}.test", test, f"the id of a test that pytest collects in {top}")


def _recorded(root: Path) -> Recorded:
    """The facts on runs in MLflow; an error is printed, as the report does not need them."""
    from fedflow.tracking.lineage import recorded_runs

    try:
        return recorded_runs(root)
    except FedflowError as error:
        say(f"the report omits MLflow links: {error}")
        return {}


def write_for_paper(root: Path = Path(), figures: str | None = None, grid: bool = False) -> list[Path]:
    """Write ``paper/`` on all results of a project: LaTeX tables, references, and figures in this format.

    With ``grid``, without runs outside of the grid.
    """
    params = load_params(root / PARAMS) if (root / PARAMS).exists() else None
    runs = collect_runs(root / "results", params.labels if params else None, grid=grid)
    return write_paper(runs, root / "paper", figures)
