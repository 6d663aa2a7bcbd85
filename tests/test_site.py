"""The docs site is built without a broken link, and needs nothing from elsewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


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
    interface = (tmp_path / "api.html").read_text()
    for name in ("run", "dataset", "Result", "compare", "Method", "Client", "option"):
        assert re.search(rf'id="fedflow\.[\w.]*\.{name}"', interface), name
    for file in tmp_path.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:[^"]+)"', file.read_text()
        )
        assert not [address for address in fetched if "canonical" not in address], (file, fetched)
