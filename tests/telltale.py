"""Count patterns that read as translated; ``python tests/telltale.py [FILE ...]`` lists them."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

HOME = Path(__file__).parents[1]
PLACES = ("README.md", "CONTRIBUTING.md", "docs", "examples", "fedflow", "flows", "studies", "tasks")
KINDS = {".md", ".py"}
PHRASES = {
    "that of": re.compile(r"\bth(?:at|ose) of\b", re.I),
    "beside": re.compile(r"\bbeside\b", re.I),
    "; None if": re.compile(r"; None (?:if|for|where|without|=)"),
    "question as a heading": re.compile(r"^#+ (?!How-to)(?:What|Which|Where|How|Whether|Who|When)\b", re.M),
}
QUESTION = re.compile(r"(?:What|Which|Where|How|Whether|Who|Whose|When|By what|In what)\b")
VAGUE = {"own", "found", "each", "one", "known", "about", "place", "places"}


def files() -> list[Path]:
    """Pages and modules of the project."""
    found_in = (HOME / name for name in PLACES)
    return [
        file
        for path in found_in
        for file in ([path] if path.is_file() else sorted(path.rglob("*")))
        if file.suffix in KINDS and "published" not in file.parts
    ]


def telltales(file: Path) -> Iterator[tuple[str, int, str]]:
    """Pattern, line number and text of every occurrence in a file."""
    text = file.read_text()
    lines = text.splitlines()
    for name, pattern in PHRASES.items():
        if name.startswith("question") and file.suffix != ".md":
            continue
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start())
            yield name, line + 1, lines[line].strip()
    if file.suffix == ".py":
        yield from _code(ast.parse(text))


def _code(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented):
            docstring = ast.get_docstring(node) or ""
            if QUESTION.match(docstring):
                yield "question as a docstring", node.body[0].lineno, docstring.partition("\n")[0]
        if isinstance(node, ast.arg) and node.arg in VAGUE:
            yield "vague name", node.lineno, node.arg
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE:
            yield "vague name", node.lineno, node.id


def counts() -> dict[str, int]:
    """Number of occurrences in the project, by pattern."""
    total = dict.fromkeys([*PHRASES, "question as a docstring", "vague name"], 0)
    for file in files():
        for name, _, _ in telltales(file):
            total[name] += 1
    return total


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]) if sys.argv[1:] else files():
        for name, line, text in telltales(file):
            print(f"{file}:{line}: {name}: {text}")
    if not sys.argv[1:]:
        print(counts())
