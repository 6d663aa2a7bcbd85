"""The pages and the claims of studies refer to files, methods and tests that exist."""

import re
import shlex
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from typer.main import get_command

from fedflow.cli import app
from fedflow.config import load_params
from fedflow.methods import METHODS
from fedflow.report.claims import Check, load_claims

HOME = Path(__file__).parents[1]
CLAIMS = sorted(HOME.glob("studies/*/claims.yaml"))
PAGES = [HOME / "README.md", *sorted((HOME / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every `fedflow` command in the page's fenced blocks."""
    for block in re.findall(r"^ *```(?!python)\w*\n(.*?)^ *```", page.read_text(), re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if not re.match(r" *(for .*; do )?(\w+=\S+ )*fedflow [^.]", line):
                continue
            words = shlex.shlex(re.sub(r"\$\w+", "1", line), posix=True, punctuation_chars=True)
            words.whitespace_split = True
            for ended, command in groupby(words, lambda word: not word.strip("();<>|&")):
                if not ended and "fedflow" in (found := list(command)):
                    yield found[found.index("fedflow") + 1 :]


@pytest.mark.parametrize("page", [p for p in PAGES if any(commands(p))], ids=lambda page: page.name)
def test_commands_have_options_that_exist(page: Path) -> None:
    """They are parsed as the command line does it, and not executed."""
    for words in commands(page):
        command = get_command(app)
        while hasattr(command, "commands") and words:
            command, words = command.commands[words[0]], words[1:]
        command.make_context("fedflow", words)


def test_reproductions_name_existing_tests() -> None:
    page = (HOME / "docs" / "reproductions.md").read_text()
    files = {match[0]: HOME / "tests" / match[0] for match in re.finditer(r"\w+/[\w/]*test_\w+\.py", page)}
    assert files and not [name for name, file in files.items() if not file.is_file()]
    source = "".join(file.read_text() for file in (HOME / "tests").rglob("test_*.py"))
    named = set(re.findall(r"\btest_\w+\b(?!\.py)", page))
    assert not {name for name in named if f"def {name}(" not in source}


@pytest.mark.parametrize("file", CLAIMS, ids=lambda file: file.parent.name)
def test_claims_name_what_exists(file: Path) -> None:
    params = load_params(file.with_name("params.yaml"))

    def names(check: Check, inherited: list[str]) -> None:
        inherited = check.partitions or inherited
        arms = [one for arm in check.arms for one in (arm, arm.minus) if one]
        places = {*inherited, *(arm.partition for arm in arms if arm.partition)}
        assert places <= params.partitions.keys() | params.procedures.keys()
        if places <= params.partitions.keys():  # of a procedure, methods are rows of its summary
            assert {arm.method for arm in arms} <= METHODS.keys() | params.methods.keys()
        for inner in (*check.all, *check.any):
            names(inner, inherited)

    for claim in load_claims(file):
        names(claim, [])
        if claim.test is not None:
            path, _, function = claim.test.partition("::")
            assert f"def {function.partition('[')[0]}(" in (HOME / path).read_text()
