"""The docs site has every page, no broken link, and an index to search; it fetches nothing from elsewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.full
def test_the_site_has_every_page_and_its_index_and_fetches_nothing(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file(), page
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    titles = {re.sub(r"<[^>]*>", "", entry["title"]) for entry in found}
    assert "Ditto (ditto)" in titles and any("participation" in entry["text"] for entry in found)
    method = re.sub(r"<[^>]*>", "", (site / "methods" / "ditto.html").read_text())
    assert "Serves: personal" in method and "down and" in method and "pulled towards" in method
    assert 'href="methods/ditto.html"' in (site / "methods.html").read_text()
    assert 'href="methods/fedevg.html"' in (site / "generation.html").read_text()
    for notebook in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        page = (site / "notebooks" / notebook.name).with_suffix(".html").read_text()
        assert f'href="{notebook.name}"' in page and (site / "notebooks" / notebook.name).is_file()
    interface = (site / "api.html").read_text()
    for name in ("run", "dataset", "Result", "compare", "Method", "Client", "option"):
        assert re.search(rf'id="fedflow\.[\w.]*\.{name}"', interface), name
    settings = (site / "reference" / "settings.html").read_text()
    assert 'id="runtiming"' in settings and 'href="../methods.html"' in settings
    assert 'href="../partitions.html"' in (site / "reference" / "index.html").read_text()
    words = {"Dirichlet", "run.timing", "fedflow sweep", "local_worst10", "ff.RunExtension"}
    texts = "\n".join(f"{entry['title']} {entry['text']}" for entry in found)
    assert not [word for word in words if word not in texts]
    for file in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:[^"]+)"', file.read_text()
        )
        assert not [address for address in fetched if "canonical" not in address], (file, fetched)


@pytest.mark.full
def test_links_of_the_site_lead_to_pages_and_sections(site: Path) -> None:
    texts = {file.resolve(): file.read_text() for file in site.rglob("*.html") if file.name != "404.html"}
    sections = {file: set(re.findall(r'\bid="([^"]+)"', text)) for file, text in texts.items()}
    broken = set()
    for file, text in texts.items():
        for link in re.findall(r'(?:href|src)="(?!\w+:|//)([^"]+)"', text):
            path, _, section = link.partition("#")
            target = (file.parent / unquote(path)).resolve() if path else file
            known = sections.get(target, {section}) | {"", "__skip"}
            if not target.exists() or section not in known:
                broken.add((file.name, link))
    assert len(texts) > 150 and not broken
