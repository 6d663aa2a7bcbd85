"""A study has settings, a README with its command, and verdicts, which the docs site shows."""

import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from support import refused

from fedflow.claims.claims import load_claims
from fedflow.claims.recorded import UNRECORDED, Entry, read_verdicts
from fedflow.claims.sources import CLAIMS, RECORDED
from fedflow.claims.verdicts import BY_TESTS, VERDICTS

HOME = Path(__file__).parents[1]
STUDIES = sorted(folder for folder in (HOME / "studies").iterdir() if folder.is_dir())
WORDS = {*VERDICTS, *BY_TESTS, UNRECORDED}


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_studies", HOME / "docs" / "studies.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
        if entry.verdict in BY_TESTS:
            file = re.match(r"pytest (tests/\S+?\.py)", entry.command)
            assert file and (HOME / file[1]).is_file(), entry.id


def test_a_verdict_on_one_or_two_seeds_says_so(site: ModuleType) -> None:
    label = {(entry.seeds, entry.verdict): entry.basis for study in STUDIES for entry in site.entries(study)}
    few = {basis for (seeds, verdict), basis in label.items() if seeds in (1, 2) and verdict in VERDICTS}
    assert few == {"seen, one seed", "seen, two seeds"}
    assert Entry(id="a", verdict="confirmed", seeds=1, planned=True).basis == "seen, one seed"
    assert [Entry(id="a", seeds=3, planned=planned).basis for planned in (True, False, None)] == [
        "planned",
        "seen",
        "",
    ]


def test_a_verdict_is_one_of_the_known_words(tmp_path: Path) -> None:
    (tmp_path / RECORDED).write_text("verdicts: [{id: a, verdict: maybe}]\n")
    with refused(r"verdicts\.yaml, .*verdict.*maybe"):
        read_verdicts(tmp_path)
    (tmp_path / RECORDED).write_text("verdicts: [{id: a}, {id: a}]\n")
    with refused("a name that no other entry has"):
        read_verdicts(tmp_path)


def test_the_site_has_a_row_for_every_verdict(site: ModuleType) -> None:
    rows = re.findall(r'<tr data-paper="([^"]+)" data-verdict="([^"]+)" data-study="([^"]+)">', site.table())
    entries = [(entry.paper, entry.verdict, s.name) for s in STUDIES for entry in site.entries(s)]
    assert Counter(rows) == Counter(entries) and len(rows) > 250
    assert site.MARK in (HOME / "docs" / site.TABLE).read_text()
    assert re.findall(r'src="([^"]+)"', site.table()) == ["verdicts.js"]
    assert all((HOME / "docs" / name).is_file() for name in ("verdicts.js", "verdicts.css"))


def test_a_link_of_a_readme_leads_to_a_page_or_names_the_file(site: ModuleType) -> None:
    text = "[a](params.yaml) [b](verdicts.yaml) [c](../../docs/howto/run.md#x) [d](../mix4/README.md)"
    links = site.LINK.sub(lambda link: site._in_site("toys", link), text)
    assert links == (
        "a (`studies/toys/params.yaml`) [b](../reproductions.html?study=toys) "
        "[c](../howto/run.md#x) [d](mix4.md)"
    )
