"""The pages refer to files and tests that exist."""

import re
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
PAGES = [HOME / "README.md", *sorted((HOME / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


def test_reproductions_name_existing_tests() -> None:
    page = (HOME / "docs" / "reproductions.md").read_text()
    files = {match[0]: HOME / "tests" / match[0] for match in re.finditer(r"\w+/[\w/]*test_\w+\.py", page)}
    assert files and not [name for name, file in files.items() if not file.is_file()]
    source = "".join(file.read_text() for file in (HOME / "tests").rglob("test_*.py"))
    named = set(re.findall(r"\btest_\w+\b(?!\.py)", page))
    assert not {name for name in named if f"def {name}(" not in source}
