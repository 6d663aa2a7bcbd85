"""The docs site is built without a broken link, and needs nothing from elsewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.full
def test_the_site_has_every_page_and_its_index_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in (ROOT / "docs").rglob("*.md"):
        assert (tmp_path / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file(), page
    found = json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
    titles = {re.sub(r"<[^>]*>", "", entry["title"]) for entry in found}
    assert "Ditto (ditto)" in titles and any("participation" in entry["text"] for entry in found)
    method = re.sub(r"<[^>]*>", "", (tmp_path / "methods" / "ditto.html").read_text())
    assert "Serves: personal" in method and "down and" in method and "pulled towards" in method
    assert 'href="methods/ditto.html"' in (tmp_path / "methods.html").read_text()
    assert 'href="methods/fedevg.html"' in (tmp_path / "generation.html").read_text()
    for notebook in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        page = (tmp_path / "notebooks" / notebook.name).with_suffix(".html").read_text()
        assert f'href="{notebook.name}"' in page and (tmp_path / "notebooks" / notebook.name).is_file()
    interface = (tmp_path / "api.html").read_text()
    for name in ("run", "dataset", "Result", "compare", "Method", "Client", "option"):
        assert re.search(rf'id="fedflow\.[\w.]*\.{name}"', interface), name
    for file in tmp_path.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:[^"]+)"', file.read_text()
        )
        assert not [address for address in fetched if "canonical" not in address], (file, fetched)
