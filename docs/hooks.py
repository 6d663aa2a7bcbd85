"""Pages of the site that are not files of docs/: one for each method, and the notebooks.

Methods are the sections of docs/methods.md, which is generated from the code. In the site it has only tables.
"""

import json
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

METHODS = "methods.md"
SECTION = re.compile(r'\n<a id="(\w+)"></a>\n\n## ')
ROW = re.compile(r"^\| \[`(\w+)`\]\(#\w+\) \| [^|]+ \| (\w+) \| ([\d,]+) \| ([\d,]+) \|", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    docs = Path(config.docs_dir)
    tables, *sections = SECTION.split((docs / METHODS).read_text())
    about = {name: rest for name, *rest in ROW.findall(tables)}
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        serves, down, up = about[name]
        traffic = (
            f"Serves: {serves}. {down} bytes down and {up} up per client and round ([how](../methods.md))."
        )
        heading, _, rest = text.partition("\n")
        files.append(
            File.generated(config, f"methods/{name}.md", content=f"# {heading}\n\n{traffic}\n{rest}")
        )
    for file in sorted(docs.glob("notebooks/*.ipynb")):
        page = file.relative_to(docs).with_suffix(".md").as_posix()
        files.append(File.generated(config, page, content=_as_page(file)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links to methods and notebooks lead to their pages."""
    markdown = re.sub(r"(notebooks/\w+)\.ipynb\)", r"\1.md)", markdown)
    if page.file.src_uri == METHODS:
        return re.sub(r"\]\(#(\w+)\)", r"](methods/\1.md)", SECTION.split(markdown)[0])
    return re.sub(r"methods\.md#(\w+)\)", r"methods/\1.md)", markdown)


def _as_page(notebook: Path) -> str:
    """The cells of a notebook in Markdown."""
    cells = json.loads(notebook.read_text())["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    parts = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in texts]
    return "\n\n".join([*parts, f"[This page as a notebook]({notebook.name}); `make test` runs its cells."])
