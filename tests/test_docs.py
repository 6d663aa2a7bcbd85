"""The pages and the claims of studies refer to files, methods and tests that exist."""

import re
import shlex
import subprocess
import tomllib
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fedflow.claims.claims import Check, load_claims
from fedflow.claims.recorded import read_verdicts
from fedflow.claims.verdicts import judge
from fedflow.cli import app
from fedflow.config import load_params
from fedflow.errors import FedflowError
from fedflow.heterogeneity.measures import MEASURES
from fedflow.methods import METHODS
from fedflow.partition import SCHEMES
from fedflow.stages.elsewhere import joined
from fedflow.stages.grid import cells

HOME = Path(__file__).parents[1]
CLAIMS = sorted(HOME.glob("studies/*/claims.yaml"))
GROUP: Any = get_command(app)
TEXTS = {"", ".md", ".py", ".pyi", ".toml", ".yaml", ".yml", ".ipynb", ".cff", ".html", ".j2", ".js", ".txt"}
STUDIES = sorted(HOME.glob("studies/*/README.md"))
PAGES = [HOME / "README.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").rglob("*.md")), *STUDIES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


def test_no_placeholder_is_taken_for_html() -> None:
    """``<project>`` outside code is an unknown element, which browsers do not show."""
    for page in PAGES:
        prose = re.sub(r"```.*?```|`[^`]*`|<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
        assert set(re.findall(r"<([A-Za-z]\w*)", prose)) <= {"a", "img", "p", "br"}, page


def test_studies_name_existing_tests() -> None:
    text = "".join(file.read_text() for file in (*STUDIES, *HOME.glob("studies/*/verdicts.yaml")))
    names = {match[0].removeprefix("tests/") for match in re.finditer(r"\w+/[\w/]*test_\w+\.py", text)}
    assert names and not [name for name in names if not (HOME / "tests" / name).is_file()]
    source = "".join(file.read_text() for file in (HOME / "tests").rglob("test_*.py"))
    named = set(re.findall(r"\btest_\w+\b(?!\.py)", re.sub(r"<!-- table .* -->", "", text)))  # a measure
    assert not {name for name in named if f"def {name}(" not in source}


def test_nothing_installs_the_stranger_of_the_same_name_from_an_index(tmp_path: Path) -> None:
    """Paths, such as ``.[dask]`` and fedflow-halfway, are of this project."""
    wrong = re.compile(
        r"""install\s+(-\S+\s+)*["'`]?fedflow(?![\w-])|["'`]fedflow\s*(\[|[=<>~]=)"""
        r"""|dependencies = .*"fedflow\b"""
    )
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=HOME, check=True, capture_output=True, text=True)
    files = [HOME / name for name in listed.stdout.split("\0") if Path(name).suffix in TEXTS]
    texts = [f for f in files if f.is_file() and f not in (Path(__file__), HOME / "CHANGELOG.md")]
    assert len(texts) > 500 and not {f: m[0] for f in texts if (m := wrong.search(f.read_text()))}
    for kind in ("method", "scheme"):
        assert CliRunner().invoke(app, ["new", kind, "mine", "--root", str(tmp_path / kind)]).exit_code == 0
        project = tomllib.loads((tmp_path / kind / "fedflow-mine" / "pyproject.toml").read_text())
        assert project["project"]["dependencies"] == []


@pytest.mark.parametrize("file", CLAIMS, ids=lambda file: file.parent.name)
def test_claims_name_what_exists(file: Path) -> None:
    params = load_params(file.with_name("params.yaml"))

    def names(check: Check, inherited: list[str]) -> None:
        inherited = check.partitions or inherited
        arms = [one for arm in check.arms for one in (arm, arm.other) if one]
        places = {*inherited, *(arm.partition for arm in arms if arm.partition)}
        assert places <= params.partitions.keys() | params.procedures.keys()
        if places <= params.partitions.keys():  # of a procedure, methods are rows of its summary
            assert {arm.method for arm in arms} <= METHODS.keys() | params.methods.keys()
        for inner in (*check.all, *check.any):
            names(inner, inherited)

    for claim in load_claims(file):
        names(claim, [])
        for test in claim.tests:
            path, _, function = test.partition("::")
            assert f"def {function.partition('[')[0]}(" in (HOME / path).read_text()


def commands(page: Path) -> list[str]:
    """The calls of fedflow in a page's code blocks, without comments; continued lines are joined.

    A shell function of one line stands for its call, a shell variable for its value, in a loop the first one.
    """
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.M)
    lines = "\n".join(text for kind, text in blocks if kind in ("", "bash")).replace("\\\n", " ").splitlines()
    whole = "\n".join(lines)
    functions = dict(re.findall(r'^(\w+)\(\) \{ (fedflow .*) "\$[@1]"; \}$', whole, re.M))
    values = dict(
        re.findall(r"^(\w+)='([^']*)'$", whole, re.M) + re.findall(r"^for (\w+) in (\S+)", whole, re.M)
    )
    lines = [re.sub(r"\$(\w+)", lambda name: values.get(name[1], name[0]), line) for line in lines]
    calls = [re.sub(r"^(\w+=\S+ )+", "", line.strip()) for line in lines]
    parts = [part.partition(" ") for call in calls for part in call.split(" && ")]
    full = [f"{functions.get(first, first)} {rest}" for first, _, rest in parts]
    return [call for call in full if call.startswith("fedflow ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_commands_and_their_options_exist(page: Path) -> None:
    for command in commands(page):
        _, name, *words = shlex.split(command, comments=True)
        known: Any = GROUP.commands[name]
        if hasattr(known, "commands"):
            name, *words = words
            known = known.commands[name]
        parser = known.make_parser(known.context_class(known, info_name=name))
        parser.parse_args(words)  # raises at an option that the command does not have


def settings_of(calls: Sequence[str]) -> set[tuple[Path, tuple[str, ...]]]:
    """The project and the settings of every call, without calls with placeholders or new plug-ins."""
    found = set()
    new = [call.split()[3] for call in calls if call.startswith("fedflow new ")]
    for call in calls:
        pairs = [*pairwise(shlex.split(call, comments=True))]
        named = dict(pairs)
        changes = [value for flag, value in pairs if flag in ("--set", "-s")]
        changes = [re.sub(r"^method\.", f"methods.{named.get('--method')}.", change) for change in changes]
        if call.startswith("fedflow run ") and "--method" in named:
            changes.append(f"grid.methods=[{named['--method']}]")
        if "--executor" in named:
            changes.append(f"engine.executor={named['--executor']}")
        root = HOME / named.get("--root", "")
        unknown = re.search(rf"\$|[A-Z]{{2,}}|\.\.\.|\b({'|'.join(new) or '$^'})\b", call)
        if (root / "params.yaml").is_file() and not unknown:
            found.add((root, tuple(changes)))
    return found


def recorded_commands(study: Path) -> list[str]:
    """The calls of fedflow that the verdicts and the first lines of the settings of a study name."""
    head = (study / "params.yaml").read_text().partition("\ndata:")[0]
    lines = re.findall(r"fedflow .*", head)
    recorded = read_verdicts(study)
    lines += [recorded.command, *(entry.command for entry in recorded.verdicts)]
    parts = [re.sub(r"^(\w+=\S+ )+| \(.*", "", part) for line in lines for part in line.split(" && ")]
    return [part for part in parts if part.startswith("fedflow ")]


def test_settings_of_commands_are_accepted() -> None:
    calls = [commands(page) for page in PAGES] + [recorded_commands(page.parent) for page in STUDIES]
    whole = set[tuple[Path, tuple[str, ...]]]().union(*map(settings_of, calls))
    assert len(whole) > 70 and {root for root, _ in whole} >= {page.parent for page in STUDIES}
    assert not [
        f"{root.name}: {error}" for root, changes in sorted(whole) if (error := refusal(root, changes))
    ]


def test_projects_on_pages_are_accepted(tmp_path: Path) -> None:
    """Blocks of YAML with data and a grid, each of which a reader saves as params.yaml."""
    blocks = [
        (page.name, block)
        for page in PAGES
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
        if re.search(r"^data:", block, re.MULTILINE) and re.search(r"^grid:", block, re.MULTILINE)
    ]
    assert len(blocks) > 5
    for page, block in blocks:
        (tmp_path / "params.yaml").write_text(block)
        assert (page, refusal(tmp_path, ())) == (page, "")


def refusal(root: Path, changes: Sequence[str]) -> str:
    """Why `load_params` or the grid refuses these settings; empty if they are accepted."""
    try:
        params = load_params(root / "params.yaml", changes)
        cells(params, root, "sweep")
    except FedflowError as error:
        return f"{' '.join(changes)}: {error}"
    return ""


@cache
def runs_of(study: Path, changes: tuple[str, ...]) -> set[tuple]:
    """The names, seeds and digests of the grid."""
    params = load_params(study / "params.yaml", changes)
    return {(*cell.names, cell.seed, cell.digest) for cell in cells(params, study, "sweep")}


@pytest.mark.parametrize("file", CLAIMS, ids=lambda file: file.parent.name)
def test_the_command_of_a_verdict_makes_its_runs(file: Path) -> None:
    """As far as they are in ``results.csv``; several commands are joined by &&."""
    study, params = file.parent, load_params(file.with_name("params.yaml"))
    recorded = read_verdicts(study)
    named = {entry.id: entry.command or recorded.command for entry in recorded.verdicts}
    procedures = {name: procedure for name, (procedure, _) in params.procedure_entries.items()}
    for judged in judge(load_claims(file), joined(params, study)[0], params.labels, procedures):
        runs = [run for result in judged.comparisons for run in result.runs]
        calls = re.sub(r"\b[A-Z_]+=\S+ ", "", named.get(judged.claim.id, "")).split(" && ")
        if runs and all(call.startswith("fedflow sweep ") for call in calls):
            made = set[tuple]().union(*(runs_of(study, of) for _, of in settings_of(calls)))
            names = [(run.partition, *([] if run.procedure else [run.method])) for run in runs]
            used = {(*name, run.seed, run.settings) for name, run in zip(names, runs)}
            assert used <= made, f"{judged.claim.id}: {sorted(used - made)[0]}"


def test_an_unknown_option_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```\nA=1 fedflow sweep \\\n  --no-such-option  # more\n```\n")
    with pytest.raises(Exception, match="No such option"):
        test_commands_and_their_options_exist(page)


def test_the_numbers_of_methods_and_schemes_are_those_of_the_catalogues() -> None:
    read = {str(page.relative_to(HOME)): page.read_text() for page in PAGES}
    methods = [method for name, method in METHODS.items() if not name.endswith("_as_published")]
    schemes = [name for name in SCHEMES if not name.endswith("_as_published")]
    groups = sum(method.serves == "cluster" for method in methods)
    fair = sum(".fairness." in method.__module__ for method in methods)
    assert f"| {len(methods)} / {groups} / {fair} |" in read["docs/compared.md"]
    assert f"| {len(schemes)}, each with a picture; ten measures |" in read["docs/compared.md"]
    assert len(MEASURES) == 10
    for page in ("README.md", "docs/index.md"):
        assert f"{len(methods)} methods, {len(schemes)} ways" in read[page], page


def test_every_extra_but_flower_is_pinned() -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    extras, lock = project["optional-dependencies"], (HOME / "requirements.lock").read_text()
    wanted = [*project["dependencies"], *(r for name in extras.keys() - {"flower"} for r in extras[name])]
    names = {re.split(r"[\[<>=]", requirement)[0].lower().replace("_", "-") for requirement in wanted}
    assert not names - {line.partition("==")[0] for line in lock.splitlines()} and "://" not in lock
