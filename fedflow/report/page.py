"""`build_report`: one self-contained HTML page, and the CSV tables behind it."""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from fedflow import __version__
from fedflow.claims.claims import load_claims
from fedflow.claims.comparisons import write_claims
from fedflow.claims.matching import compare
from fedflow.claims.verdicts import judge
from fedflow.errors import FedflowError
from fedflow.files import CHANGED, replace_text
from fedflow.finished.collect import Labels, collect_partitions, collect_runs
from fedflow.finished.collect_outcomes import Entries, collect_outcomes, write_outcomes
from fedflow.finished.networks import collect_networks
from fedflow.finished.pairs import write_pairs
from fedflow.finished.run import Run
from fedflow.finished.tables import write_tables
from fedflow.naming import counted
from fedflow.pictures.drawing import DASHES, SERIES
from fedflow.report.blocks import Text
from fedflow.report.compared import Compared, Recorded, SectionFunction, grouped
from fedflow.report.sections import (
    accuracy,
    calibration,
    central,
    claims,
    clients,
    curricula,
    curves,
    data,
    fairness,
    findings,
    groups,
    images,
    levels,
    lineage,
    pairs,
    procedures,
    pruning,
    published,
    ranks,
    reproduce,
    runs,
    traffic,
    tuning,
)

TITLE = "Federated methods compared"
# In the order of the page: findings, details, origin.
SECTIONS: tuple[SectionFunction, ...] = (
    findings.section,
    claims.section,
    accuracy.section,
    ranks.section,
    pairs.section,
    published.section,
    curves.section,
    fairness.section,
    traffic.section,
    groups.section,
    clients.section,
    curricula.section,
    calibration.section,
    pruning.section,
    levels.section,
    images.section,
    images.privacy,
    data.section,
    central.section,
    tuning.section,
    procedures.section,
    runs.section,
    runs.settings,
    lineage.section,
    reproduce.glossary,
    reproduce.section,
)


def build_report(
    results_dir: Path,
    partitions_dir: Path,
    out_dir: Path,
    claims: Path | None = None,
    central: Path | None = None,
    labels: Labels | None = None,
    outcomes: Path | None = None,
    procedures: Entries | None = None,
    recorded: Recorded | None = None,
    tried: Path | None = None,
    now: Mapping[str, Sequence[str]] | None = None,
    join: Callable[[Sequence[Run]], Sequence[Run]] | None = None,
    changed: Callable[[Run], Mapping[str, Any]] | None = None,
    grid: bool = False,
) -> Path:
    """Write ``index.html`` and CSV tables on all runs below ``results_dir``; returns the page's path.

    A row is a method with one set of settings: runs with other settings or data are never averaged. The
    tables are ``accuracy``, ``fairness``, ``traffic`` and ``clusters`` (mean and sample std over seeds),
    ``runs`` (a row per run) and ``accuracy_curves`` (for ``dvc plots``). Claims in the file ``claims``, if it
    exists, are judged in a section, ``claims.csv`` and ``claims.md``. The networks in the folder ``central``,
    the outcomes of procedures below ``outcomes`` (with ``outcomes.csv``) and the scores of `fedflow tune` in
    the folder ``tried`` have sections. ``labels`` of methods and entries of ``procedures`` are from
    params.yaml, ``recorded`` are facts from MLflow (`fedflow.tracking.lineage.recorded_runs`); ``now`` has
    the current settings and code of the grid (`fedflow.stages.grid.current`), and outdated runs are marked.
    ``join`` adds runs that were made elsewhere, for claims and published tables; ``changed`` is as for
    `judge`. With ``grid``, runs outside of the grid are left out.
    Equal inputs give equal bytes. Raises `FedflowError` when there are neither results nor outcomes, a file
    cannot be read, or ``out_dir`` cannot be written.
    """
    done = collect_outcomes(outcomes, procedures, grid) if outcomes else []
    collected = collect_runs(results_dir, labels, needed=not done, grid=grid)
    every = [*collected, *(row for outcome in done for row in outcome.rows)]
    every = [*join(every)] if join else every
    every = [run for run in every if not grid or run.folder.parts[-3 if run.procedure else -4] != CHANGED]
    registered = {name: entry for name, (entry, _) in (procedures or {}).items()}
    c = grouped(
        collected,
        collect_partitions(partitions_dir, list(dict.fromkeys(run.division for run in collected))),
        now,
        outcomes=done,
        networks=collect_networks(central) if central else [],
        claims=judge(load_claims(claims), every, labels, registered, changed) if claims else [],
        published=compare(every),
        recorded=recorded or {},
        labels=labels or {},
        tried=tried,
    )
    text, page = _page(c, TITLE if collected else "Procedures"), Path(out_dir) / "index.html"
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_tables(collected, page.parent)
        write_pairs(collected, {p.name: p.pairs for p in c.partitions}, page.parent / "pairs.csv")
        write_outcomes(done, page.parent)
        write_claims(c.claims, page.parent, c.recorded)
        replace_text(page, text)
    except OSError as error:
        raise FedflowError(f"cannot write the report to {out_dir}: {error.strerror or error}") from error
    return page


def _page(c: Compared, title: str) -> str:
    """The HTML of the page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedflow.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["hashed"] = _hashed
    made, folders = lineage.made(c.recorded, c.runs), len(c.runs) + len(c.outcomes)
    return environment.get_template("page.html.j2").render(
        title=title,
        opening=_opening(c),
        sections=[shown for section in SECTIONS if (shown := section(c)) is not None],
        footer=f"Written by fedflow {__version__} from {counted(folders, 'result folder')}."
        + (f" Runs: {made}." if made else ""),
        colors=c.colors,
        palette=len(SERIES),
        dashes=len(DASHES),
    )


def _opening(c: Compared) -> list[Text]:
    """The leading methods, and the numbers of runs."""
    texts, seeds = [Text(sentence, "lede") for sentence in findings.summary(c)], {run.seed for run in c.runs}
    if c.runs:
        variants = f" in {len(c.colors)} settings" if len(c.colors) > len(c.methods) else ""
        few = "one seed does" if len(seeds) == 1 else "two seeds do"
        few = f"; {few} not show how much results vary" if len(seeds) < 3 else ""
        counts = f"{counted(len(c.methods), 'method')}{variants}, {counted(len(c.partitions), 'partition')}"
        rows = "runs of different settings or data have their own rows"
        drawn = ", which draw divisions of the data too" if all(run.redrawn for run in c.runs) else ""
        means = f"Numbers are mean ± sample std over seeds{drawn}; {rows}{few}."
        texts.append(Text(f"{counted(len(c.runs), 'run')}: {counts}, {counted(len(seeds), 'seed')}. {means}"))
    if c.outcomes:
        link = Markup('<a href="#procedures">procedures</a>, experiments without federated rounds.')
        texts.append(Text(Markup("{} of ").format(counted(len(c.outcomes), "outcome")) + link))
    return texts


def _hashed(text: str) -> str:
    """Hash of an inline script or style for a Content-Security-Policy."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
