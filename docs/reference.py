"""Reference pages written from the code when the docs site is built, and the committed index of methods.

``python docs/reference.py`` updates the index, docs/methods.md.
"""

import csv
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.main import get_command

import fedflow as ff
from fedflow.cli import app
from fedflow.config import explained
from fedflow.front import names
from fedflow.methods import METHODS
from fedflow.methods import catalogue as methods
from fedflow.metrics.table import METRICS, Metric
from fedflow.models import describe, known_options
from fedflow.partition import SCHEMES
from fedflow.partition import catalogue as schemes
from fedflow.procedures import PROCEDURES
from fedflow.procedures import catalogue as procedures
from fedflow.report.citing import sources
from fedflow.settings import Settings, markdown

INDEX = Path(__file__).with_name("methods.md")
COMPOSITION = Path(__file__).with_name("composition.csv")  # written by composition.py
KEPT = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|</?a\b[^>]*>|<(?=\w)|(?<=\w)_(?=\w)", re.DOTALL)
LABEL = re.compile(r"\s+(?=\*[A-Z][\w' ]*\*|(?:Client|Server|Objective|Target|Recorded): )")
ELSEWHERE = {  # sections of params.yaml with entries that have separate pages
    "methods": "The hyperparameters of each method are on [its page](../methods.md).",
    "partitions": "The parameters of each scheme are under [partition schemes](../partitions.md).",
    "procedures": "The parameters of each procedure are under [procedures](../procedures.md).",
}


def pages() -> dict[str, str]:
    """Every generated page by its path in docs/; methods.md takes the place of the index."""
    grouped = methods.families()
    written = {
        "methods.md": methods.table(grouped, "methods/{}.md"),
        **{f"methods/{page.name}.md": method(page) for family in grouped for page in family.pages},
        "partitions.md": schemes.catalogue(),
        "procedures.md": procedure_sections(),
        "reference/settings.md": settings(),
        "reference/metrics.md": metrics(),
        "reference/commands.md": commands(),
        "reference/composition.md": composition(),
        "reference/names.md": public_names(),
    }
    return {path: KEPT.sub(_literal, text) for path, text in written.items()}


def _literal(match: re.Match[str]) -> str:
    """Underscores within words, such as x_k, start no emphasis, and <name> is no element."""
    return {"_": r"\_", "<": "&lt;"}.get(match[0], match[0])


def index() -> str:
    """The committed table of methods, with links to their code and papers."""
    families = methods.listed()[: len(methods.FAMILIES)]  # without plug-ins
    rows = [
        (f'<a id="{name}"></a>[`{name}`](../{_file(METHODS[name])})', label, family, _paper(name))
        for family, _, listed in families
        for name, label, *_ in listed
    ]
    head = """# Methods

`fedflow methods NAME` explains a method: idea, equations, hyperparameters and traffic. On the docs site,
every method has a page. Variants *as published* are not counted as methods.
"""
    return "\n".join([head, *_table(("name", "method", "family", "paper"), rows)]) + "\n"


def _file(cls: type) -> str:
    return cls.__module__.replace(".", "/") + ".py"


def _paper(name: str) -> str:
    """The first source of a method: authors, title with a link, and year."""
    found = sources(name)
    fields = found[0].fields if found else {"note": ""}
    if "author" not in fields:
        return fields["note"]
    authors = fields["author"].split(" and ")
    written = " and ".join(authors) if len(authors) < 3 else f"{authors[0]} et al."
    title = fields["title"].strip("{}")
    linked = f"[{title}](https://arxiv.org/abs/{fields['eprint']})" if "eprint" in fields else title
    return f"{written}, {linked}, {fields['year']}"


def method(page: methods.MethodPage) -> str:
    """The page of one method."""
    title, _, rest = methods.section(page).partition("\n")
    text, *table = rest.partition("\n| field |")
    text = LABEL.sub("\n\n", text) + "".join(table)
    traffic = f"Serves: {page.serves}. {page.down:,} bytes down and {page.up:,} up per client and round"
    return f"# {title}\n\n{traffic} ([how](../methods.md)).\n{text}{_within(METHODS[page.name], 2)}"


def procedure_sections() -> str:
    """All procedures on one page; every section ends with the settings within its parameters."""
    head, *sections = procedures.catalogue().split('\n<a id="')
    named = {section.partition('"')[0]: section for section in sections}
    return '\n<a id="'.join([head, *(text + _within(PROCEDURES[name], 3) for name, text in named.items())])


def settings() -> str:
    """Every field of params.yaml, section by section."""
    text = """# Settings

All fields of `params.yaml`. `--set run.rounds=20` changes one for a single command. `fedflow settings run`
prints a section, `fedflow schema` a JSON schema for editors, and `fedflow doctor` checks the file.
"""
    for section in explained.sections():
        top = "." not in section.name
        text += f"\n{'##' if top else '###'} {section.name}\n\n{_sentence(section.doc)}\n"
        if section.same:
            text += f"\nThe fields are the same as in [{section.same}](#{section.same.replace('.', '')}).\n"
            continue
        text += _table_of(section.rows) + (
            f"\n{ELSEWHERE[section.name]}\n" if section.name in ELSEWHERE else ""
        )
        text += _networks() if section.name == "models" else ""
    return text


def _networks() -> str:
    rows = [
        (f"`{row['name']}`", " ".join(f"`{option}`" for option in known_options(row["name"])), row["about"])
        for row in describe()
    ]
    networks = "\n".join(_table(("network", "options", "description"), rows))
    return f"\nSee [Choose a network](../howto/networks.md).\n\n{networks}\n"


def _within(cls: type[Settings], level: int) -> str:
    """The settings within the fields of a class."""
    text = ""
    for field, inner in explained.within(cls):
        text += f"\n{'#' * level} `{field}`\n{_table_of(explained.rows(inner))}"
        for _, doc, options in explained.chosen(inner):
            text += f"\n{'#' * (level + 1)} {doc}\n{_table_of(options)}"
    return text


def _table_of(fields: list[dict[str, Any]]) -> str:
    return "\n" + "\n".join(markdown(fields)) + "\n"


def metrics() -> str:
    """Every number of a run."""
    rows = [
        (f"`{metric.name}`", metric.label, metric.hint, metric.unit.sign, metric.better, _files(metric))
        for metric in METRICS.values()
    ]
    head = """# Metrics

Metrics of a run, in its files, in MLflow and in the report. Files have shares between 0 and 1, and traffic
in bytes; the unit below is the report's. Methods add diagnostics, `method/<name>` and `client/<name>/mean`.
Claims use [measures](measures.md), which are derived from metrics.
"""
    columns = ("name", "label", "definition", "unit", "better", "files")
    return "\n".join([head, *_table(columns, rows)]) + "\n"


def _files(metric: Metric) -> str:
    places = {"rounds.csv": metric.rounds, "metrics.json": metric.final, "clients.parquet": metric.client}
    return ", ".join(f"`{file}`" for file, present in places.items() if present)


def composition() -> str:
    """The methods that work with each step of updates, by family, and the reasons of the others."""
    with COMPOSITION.open(newline="") as file:
        refused = {(row["method"], row["steps"]): row["refused"] for row in csv.DictReader(file)}
    steps = [steps for method, steps in refused if method == "fedavg" and " " not in steps]
    reasons: list[str] = []

    def cell(method: str, steps: str) -> str:
        reason = re.sub(rf"\b{method}\b", "METHOD", refused.get((method, steps), ""))
        if reason and reason not in reasons:
            reasons.append(reason)
        return f"no ({reasons.index(reason) + 1})" if reason else "yes"

    text = """# Composition

Each cell is a run of two rounds with eight clients, in which all clients succeed (yes), or which is
refused (no, with the number of the reason). Options of steps have their defaults, or a value
that eight clients allow; clients have equal weights where a method lets them. Steps are entries of
`run.updates` ([guide](../howto/update-steps.md)).
"""
    columns = ("method", *(f"`{step}`" for step in steps))
    for title, _, listed in methods.listed()[: len(methods.FAMILIES)]:
        rows = [(f"[`{n}`](../methods/{n}.md)", *(cell(n, step) for step in steps)) for n, *_ in listed]
        text += "\n".join(["", f"## {title}", "", *_table(columns, rows)]) + "\n"
    pairs = [
        (f"`{first}`", *("" if first == then else cell("fedavg", f"{first} {then}") for then in steps))
        for first in steps
    ]
    text += "\n## Two steps\n\nWith `fedavg`: rows are the first step of the list, columns the second.\n\n"
    text += "\n".join(_table(("first", *columns[1:]), pairs)) + "\n\n## Reasons\n\n"
    return text + "".join(f"{i}. `{reason}`\n" for i, reason in enumerate(reasons, 1))


def commands() -> str:
    """Every command with its arguments and options."""
    group: Any = get_command(app)
    head = """# Commands

`fedflow COMMAND --help` prints the same in a terminal. Run commands in the folder of a project.
"""
    return head + "".join(
        _command(f"fedflow {name}", command) for name, command in sorted(group.commands.items())
    )


def _command(path: str, command: Any) -> str:
    context = command.context_class(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    records = [parameter.get_help_record(context) for parameter in command.params]
    rows = [(f"`{name}`", text) for name, text in filter(None, records)]
    text = f"\n## {path}\n\n{inspect.cleandoc(command.help or '')}\n\n```text\n{usage}\n```\n"
    text += "\n" + "\n".join(_table(("option", "description"), rows)) + "\n" if rows else ""
    inner: Mapping[str, Any] = getattr(command, "commands", {})
    return text + "".join(_command(f"{path} {name}", each) for name, each in inner.items())


def public_names() -> str:
    """Every name of `import fedflow as ff`, with the first sentence of its documentation."""
    rows = [(f"`ff.{name}`", _summary(name)) for name in sorted(names.known(), key=str.lower)]
    head = """# Public names

All names of `import fedflow as ff`; `help(ff.run)` prints more ([Python interface](../api.md)).
"""
    return "\n".join([head, *_table(("name", "summary"), rows)]) + "\n"


def _summary(name: str) -> str:
    value = getattr(ff, name)
    for link, table in (("methods/{}.md", METHODS), ("partitions.md#{}", SCHEMES)):
        for key, cls in table.items():
            if value is cls or name == key:
                kind = "Method" if table is METHODS else "Partition scheme"
                return f"{kind} [`{key}`](../{link.format(key)})."
    documented = inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)
    first = (inspect.getdoc(value) or "").split("\n\n")[0] if documented else ""
    return "" if first.startswith(f"{name}(") else " ".join(first.split())


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (columns, ("---",) * len(columns), *escaped)]


if __name__ == "__main__":
    INDEX.write_text(index())
