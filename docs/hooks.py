"""Pages of the site that are not files of docs/: reference pages written from the code, and the notebooks."""

import json
import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

import reference  # docs/reference.py
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"\[([^][]+)\]\((?!\w+:)([^)#\s]+)(#[\w-]+)?\)")
# In the repository, links lead to rows of the index of methods and to sections of reference/index.md.
OVERVIEW = "reference/index.md"
PAGES = {f"{OVERVIEW}#{name}": f"{name}.md" for name in ("partitions", "procedures")} | {
    f"{OVERVIEW}#{name}": f"reference/{name}.md"
    for name in ("settings", "metrics", "commands", "composition", "names")
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages; tables take the place of the index of methods."""
    docs = Path(config.docs_dir)
    notebooks = {
        file.relative_to(docs).with_suffix(".md").as_posix(): _as_page(file)
        for file in sorted(docs.glob("notebooks/*.ipynb"))
    }
    generated = reference.pages() | notebooks
    PAGES.update({f"methods.md#{path[8:-3]}": path for path in generated if path.startswith("methods/")})
    PAGES.update({page.replace(".md", ".ipynb"): page for page in notebooks})
    for path, text in generated.items():
        if (committed := files.get_file_from_path(path)) is not None:
            files.remove(committed)
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Links lead to generated pages; what is not on the site is named without a link."""
    folder = dirname(page.file.src_uri)

    def led(match: re.Match[str]) -> str:
        text, path, anchor = match[1], match[2], match[3] or ""
        target = normpath(join(folder, path))
        if (there := PAGES.get(target + anchor)) and page.file.src_uri != there:
            return f"[{text}]({relpath(there, folder)})"
        return text if target.startswith("..") else match[0]

    if page.file.src_uri == OVERVIEW:
        markdown = re.sub(
            r"^## (\w+)$", lambda match: f"## [{match[1]}](index.md#{match[1].lower()})", markdown, flags=re.M
        )
    return LINK.sub(led, markdown)


def _as_page(notebook: Path) -> str:
    """The cells of a notebook in Markdown."""
    cells = json.loads(notebook.read_text())["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    parts = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in texts]
    return "\n\n".join([*parts, f"[This page as a notebook]({notebook.name}); `make test` runs its cells."])
