"""A study has settings, a README with its command, and verdicts, which the docs site shows."""

import csv
import importlib.util
import re
import runpy
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace

import command
import pytest
from support import refused

from fedflow.claims.claims import Claim, load_claims
from fedflow.claims.recorded import UNRECORDED, Entry, judged_from, read_verdicts
from fedflow.claims.results import CHANGES, EQUAL, registered, registered_names
from fedflow.claims.sources import CLAIMS, COMPARISONS, RECORDED, RESULTS
from fedflow.claims.verdicts import BY_TESTS, NOT_RUN, VERDICTS, Judged, judge
from fedflow.config import PARAMS, load_params
from fedflow.errors import BadInput, FedflowError
from fedflow.models import registry
from fedflow.stages.current import current_code
from fedflow.stages.elsewhere import changed_sections, joined
from fedflow.stages.experiment import Experiment
from fedflow.stages.procedure import ProcedureRun
from fedflow.stages.report import check_tests

HOME = Path(__file__).parents[1]
STUDIES = sorted(folder for folder in (HOME / "studies").iterdir() if folder.is_dir())
WORDS = {*VERDICTS, *BY_TESTS, UNRECORDED}


def of_docs(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", HOME / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site() -> ModuleType:
    return of_docs("studies")


@pytest.mark.slow
def test_pytest_collects_the_tests_that_claims_name() -> None:
    check_tests((claim for study in STUDIES for claim in load_claims(study / CLAIMS)), HOME)


def test_tests_that_pytest_cannot_collect_are_named(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("import nowhere_to_be_found\n")
    claim = Claim.parse({"id": "a", "source": "b", "claim": "c", "test": "test_mine.py::test_it"})
    with refused("^pytest cannot collect the tests that claims name: E .*nowhere_to_be_found", FedflowError):
        check_tests([claim], tmp_path)


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_a_study_has_settings_a_command_and_a_verdict_on_every_claim(site: ModuleType, study: Path) -> None:
    assert (study / "params.yaml").is_file()
    readme = (study / "README.md").read_text()
    assert re.search(rf"^(FEDFLOW_DATA=\S+ )?fedflow sweep --root studies/{study.name}\b", readme, re.M) or (
        f"() {{ fedflow sweep --root studies/{study.name} " in readme
    )
    assert f"../studies/{study.name}/README.md" in (HOME / "docs" / "reproductions.md").read_text()
    entries = site.entries(study)
    claims = {claim.id: claim for claim in load_claims(study / CLAIMS)}
    assert claims.keys() <= {entry.id for entry in entries}
    for entry in entries:
        assert entry.verdict in WORDS
        assert entry.claim and entry.source and entry.paper and entry.command, entry.id
        claim = claims.get(entry.id)
        assert claim is None or (entry.verdict in BY_TESTS) == (not claim.kinds), entry.id
        assert claim or entry.verdict in (NOT_RUN, UNRECORDED), f"{entry.id}: typed by hand"
        if entry.verdict in BY_TESTS:
            file = re.match(r"pytest (tests/\S+?\.py)", entry.command)
            assert file and (HOME / file[1]).is_file(), entry.id


def test_a_verdict_on_one_or_two_seeds_says_so(site: ModuleType) -> None:
    label = {(entry.seeds, entry.verdict): entry.basis for study in STUDIES for entry in site.entries(study)}
    few = {basis for (seeds, verdict), basis in label.items() if seeds in (1, 2) and verdict in VERDICTS}
    typed = {
        e.verdict for study in STUDIES for e in site.entries(study) if e.seeds in (1, 2) and not e.commit
    }
    assert typed <= {NOT_RUN, "not resolved", UNRECORDED}
    assert few <= {"seen, one seed", "seen, two seeds"}
    assert Entry(id="a", verdict="confirmed", seeds=1, planned=True).basis == "seen, one seed"
    assert [Entry(id="a", seeds=3, planned=planned).basis for planned in (True, False, None)] == [
        "as planned",
        "seen, not planned",
        "",
    ]
    changed = Entry(id="a", seeds=5, planned=True, was="confirmed; other seeds")
    assert changed.basis == "seen, not planned"


def test_committed_verdicts_follow_from_committed_results() -> None:
    """As far as the results are of this code, and of settings that params.yaml has."""
    for study in STUDIES:
        params = load_params(study / PARAMS)
        runs, outdated = joined(params, study)
        assert not [row for row in outdated if row["code"] == code_of(row)], f"{study}: other settings"
        if outdated:  # p-values depend on all comparisons
            continue
        procedures = {name: procedure for name, (procedure, _) in params.procedure_entries.items()}
        entries = {entry.id: entry for entry in read_verdicts(study).verdicts}
        claims, recorded = load_claims(study / CLAIMS), read_verdicts(study).judged
        assert not runs or recorded == judged_from(study, claims), f"{study}: fedflow report --verdicts"
        for judged in judge(claims, runs, params.labels, procedures, changed_sections(params, study)):
            if not judged.comparisons:
                continue
            entry, where = entries[judged.claim.id], f"{study}: {judged.claim.id}"
            if judged.verdict == NOT_RUN:
                assert not entry.commit, f"{where}: a verdict on an earlier claim"
            else:
                assert (entry.verdict, entry.seeds) == (judged.verdict, seeds(judged)), where
                spans = [result.span for result in judged.shown if result.span]
                assert numbers(entry.interval) == pytest.approx(numbers("; ".join(spans)), abs=0.02), where
                used = [run.committed for result in judged.comparisons for run in result.runs]
                made = {row["commit"] for row in used if row}
                assert entry.commit == ", ".join(sorted(made)), where
                rows = [row for row in compared(study) if row["id"] == judged.claim.id]
                assert len(rows) == len(judged.comparisons), where
                assert {row["verdict"] for row in rows} == {judged.verdict}, where


def compared(study: Path) -> list[dict[str, str]]:
    with (study / COMPARISONS).open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def numbers(text: str) -> list[float]:
    return [float(found.replace("−", "-")) for found in re.findall(r"[−+]?\d*\.?\d+", text)]


def code_of(row: Mapping[str, str]) -> str:
    return current_code(row["kind"], row["registered"], row["networks"])


def seeds(judged: Judged) -> int:
    return min(len(result.difference.values) for result in judged.deciding if result.difference)


def test_a_verdict_is_one_of_the_known_words(tmp_path: Path) -> None:
    (tmp_path / RECORDED).write_text("verdicts: [{id: a, verdict: maybe}]\n")
    with refused(r"verdicts\.yaml, .*verdict.*maybe"):
        read_verdicts(tmp_path)
    (tmp_path / RECORDED).write_text("verdicts: [{id: a}, {id: a}]\n")
    with refused("a name that no other entry has"):
        read_verdicts(tmp_path)


def test_the_site_has_a_row_for_every_verdict(site: ModuleType) -> None:
    table = site.table()
    rows = re.findall(r'<tr data-paper="([^"]+)" data-verdict="([^"]+)" data-study="([^"]+)"', table)
    entries = [(entry.paper, entry.verdict, s.name) for s in STUDIES for entry in site.entries(s)]
    assert Counter(rows) == Counter(entries) and len(rows) > 250
    assert site.MARK in (HOME / "docs" / site.TABLE).read_text()
    assert re.findall(r'src="([^"]+)"', table) == ["verdicts.js"]
    assert all((HOME / "docs" / name).is_file() for name in ("verdicts.js", "verdicts.css"))


STUDY = """
data: {digits: {source: digits}}
models: {digits: mlp}
partitions: {p: {dataset: digits, scheme: iid, clients: 4}}
methods: {x: {method: fedavg}, y: {method: fedavg, training: {lr: %s}}}
grid: {datasets: [digits], partitions: [p], methods: [x, y], seeds: [0, 1, 2, 3, 4]}
"""
CLAIM = (
    "- {id: a, source: b, claim: c, partition: p, measure: loss, planned: true, of: x, above: [y], by: %s}"
)


def committed(study: Path, now: str) -> None:
    """A study with a confirmed claim on two methods, whose results are of the code of ``now``."""
    (study / CLAIMS).write_text(CLAIM % 0)
    (study / PARAMS).write_text(STUDY % 0.1)
    heads = "partition,method,seed,settings,kind,registered,networks,code,loss"
    params, code = load_params(study / PARAMS), current_code("run", now, "mlp")
    settings = {method: Experiment(params, "p", method, 0, study).digest[:8] for method in "xy"}
    rows = [f"p,{m},{seed},{settings[m]},run,fedavg,mlp,{code},{seed}" for m in "xy" for seed in range(5)]
    (study / RESULTS).write_text("\n".join([heads, *rows]) + "\n")
    (study / RECORDED).write_text(
        f"judged: {judged_from(study, load_claims(study / CLAIMS))}\n"
        "verdicts: [{id: a, verdict: confirmed, seeds: 5, commit: abc}, {id: b}]\n"
    )


def test_a_verdict_on_results_of_other_code_is_stale(site: ModuleType, tmp_path: Path) -> None:
    committed(tmp_path, "fedavg")
    (row, other) = site.shown(tmp_path)
    assert (row.state, row.entry.basis, other.state) == ("current", "as planned", "")
    committed(tmp_path, "aaggff_s fedavg")
    (row, _) = site.shown(tmp_path)
    assert row[2:] == ("stale", "the settings or code of 10 of 10 results have changed since")
    assert "<p>stale: the settings or code of 10" in site._row(row)
    assert 'data-results="stale"' in site._row(row)
    lines, now = (tmp_path / RESULTS).read_text().splitlines(), current_code("run", "fedavg", "mlp")
    (tmp_path / RESULTS).write_text("".join(f"{x},{end}\n" for x, end in zip(lines, [EQUAL] + 10 * [now])))
    assert site.shown(tmp_path)[0][2:] == ("current", site.SAMPLE)


def test_outdated_rows_that_a_claim_does_not_compare_leave_it_current(
    site: ModuleType, tmp_path: Path
) -> None:
    committed(tmp_path, "fedavg")
    head, *rows = (tmp_path / RESULTS).read_text().splitlines()
    code = head.split(",").index("code")
    other = [*rows[0].split(","), '"{""method"": {""lam"": 9.0}}"']
    other[code] = "000000000000"
    lines = [f"{head},{CHANGES}", *(f"{row}," for row in rows), ",".join(other)]
    (tmp_path / RESULTS).write_text("\n".join(lines) + "\n")
    verdicts, claims = (tmp_path / RECORDED).read_text(), load_claims(tmp_path / CLAIMS)
    digest = f"judged: {judged_from(tmp_path, claims)}\n"
    (tmp_path / RECORDED).write_text(digest + verdicts.split("\n", 1)[1])
    assert site.shown(tmp_path)[0].state == "current" and not claims[0].selects


def test_a_verdict_is_stale_once_settings_claims_or_rows_change(site: ModuleType, tmp_path: Path) -> None:
    committed(tmp_path, "fedavg")
    (tmp_path / PARAMS).write_text(STUDY % 0.2)
    assert site.shown(tmp_path)[0][3] == "the settings or code of 5 of 10 results have changed since"
    (tmp_path / PARAMS).write_text(STUDY % 0.1)
    (tmp_path / CLAIMS).write_text(CLAIM % 0.5)
    assert site.shown(tmp_path)[0][2:] == ("stale", "claims or results have changed since")
    committed(tmp_path, "fedavg")
    lines = (tmp_path / RESULTS).read_text().splitlines(keepends=True)
    (tmp_path / RESULTS).write_text("".join([*lines[:4], *lines[6:]]))
    assert site.shown(tmp_path)[0].state == "stale"
    committed(tmp_path, "fedavg")  # and judged again: it says nothing now, but the earlier verdict is kept
    (tmp_path / COMPARISONS).write_text("id,verdict,partition,reason\na,not run,p,no values\n")
    assert site.shown(tmp_path)[0].state == "stale"


def test_a_verdict_without_rows_of_a_method_is_no_verdict_on_committed_results(
    site: ModuleType, tmp_path: Path
) -> None:
    committed(tmp_path, "fedavg")
    lines = (tmp_path / RESULTS).read_text().splitlines(keepends=True)
    (tmp_path / RESULTS).write_text("".join(lines[:6]))  # none of y
    assert site.shown(tmp_path)[0].state == "results not committed"
    head, reason = "id,verdict,partition,reason\n", "no results of y [Training loss (worst round)]"
    (tmp_path / COMPARISONS).write_text(f"{head}a,not run,p,{reason}\n")  # it was judged again without them
    assert site.shown(tmp_path)[0].state == "results not committed"
    (tmp_path / COMPARISONS).write_text(f"{head}a,confirmed,p,{reason}\n")  # as another part decides it
    (tmp_path / RECORDED).write_text((tmp_path / RECORDED).read_text().partition("\n")[2])
    assert site.shown(tmp_path)[0].state == "current"
    (tmp_path / RESULTS).unlink()
    assert site.shown(tmp_path)[0].state == "results not committed"
    (tmp_path / CLAIMS).unlink()
    assert site.shown(tmp_path)[0].state == "typed by hand"


def test_the_code_of_a_run_follows_from_the_names_in_its_row() -> None:
    codes: dict[tuple[str, str, str], str] = {}
    for study in STUDIES:
        params = load_params(study / "params.yaml")
        for partition, method in product(params.grid.partitions, params.grid.methods):
            cell = Experiment(params, partition, method, 0, study)
            network = params.model(cell.dataset).name
            names = "run", " ".join(registered_names(cell.effective)), network
            codes.setdefault(names, cell.identity.code[:12])
        for name in params.grid.procedures[:3]:
            outcome = ProcedureRun(params, name, 0, study)
            networks = [model["name"] for _, model in sorted(outcome.effective["models"].items())]
            codes.setdefault(
                ("procedure", outcome.procedure.name, " ".join(networks)), outcome.identity.code[:12]
            )
    assert len(codes) > 60 and any("procedure" in names for names in codes)
    assert {names: current_code(*names) for names in codes} == codes
    assert current_code("run", "gone", "mlp") == ""


def test_the_code_of_networks_with_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version of peft decides it too; without peft nothing is known of it."""
    names = "run", "fedavg", "mlp+lora"
    current_code.cache_clear()
    monkeypatch.setattr(registry, "version", lambda _: "1.0")
    assert current_code(*names) not in ("", current_code("run", "fedavg", "mlp"))
    current_code.cache_clear()
    monkeypatch.undo()
    if find_spec("peft") is None:
        assert current_code(*names) == ""
        return
    text = command.PARAMS.replace("{hidden: [8]}", "{hidden: [8], lora: {rank: 2}}")
    (tmp_path / "params.yaml").write_text(text)
    run = Experiment(load_params(tmp_path / "params.yaml"), "skewed", "fedavg", 0, tmp_path)
    assert registered(SimpleNamespace(params=run.effective, procedure="")) == names
    assert current_code(*names) == run.identity.code[:12]


def test_a_link_of_a_readme_leads_to_a_page_or_names_the_file(site: ModuleType) -> None:
    text = "[a](params.yaml) [b](verdicts.yaml) [c](../../docs/howto/run.md#x) [d](../mix4/README.md)"
    text += " [e](results.csv) ![f](ranks.svg)"
    links = site.LINK.sub(lambda link: site._in_site("toys", link), text)
    assert links == (
        "a (`studies/toys/params.yaml`) [b](../reproductions.html?study=toys) "
        "[c](../howto/run.md#x) [d](mix4.md) [e](toys-results.csv) ![f](toys-ranks.svg)"
    )


def test_tables_in_readmes_are_those_of_the_results() -> None:
    """``docs/tables.py`` writes the tables of all studies except ``updates``, which has ``draw.py``."""
    tables = of_docs("tables")
    for study in STUDIES:
        readme = (study / "README.md").read_text()
        assert tables.filled(readme, study) == readme, study.name
    readme = (HOME / "studies" / "updates" / "README.md").read_text()
    assert runpy.run_path(str(HOME / "studies" / "updates" / "draw.py"))["filled"](readme) == readme
    changed = "<!-- table silos: local_gap -->\n<!-- end of table -->"
    assert "| FedAvg | 8.5 ± 4.6 |" in tables.filled(changed, HOME / "studies" / "fair")
    with pytest.raises(BadInput, match="'local_gop' is not accepted"):
        tables.filled(changed.replace("gap", "gop"), HOME / "studies" / "fair")
