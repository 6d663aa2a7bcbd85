"""Commands that list and explain methods, procedures, schemes, datasets, models, published tables."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from fedflow.cli.options import Json, Markdown, Root, Set, load
from fedflow.cli.printing import (
    console,
    cut,
    options_table,
    print_json,
    print_line,
    print_table,
    print_text,
    records,
)
from fedflow.cli.remembered import remembered, short
from fedflow.errors import BadInput, FedflowError, called, place, reason, unknown_name
from fedflow.project.arguments import check_once

FIELDS = ("field", "default", "accepts", "meaning")  # of settings


def methods(
    name: Annotated[str | None, typer.Argument(help="Explain this method.")] = None,
    markdown: Markdown = False,
    as_json: Json = False,
) -> None:
    """List the methods by family, or explain one: idea, source, equations, hyperparameters, traffic.

    Example: `fedflow methods ifca`.
    """
    if markdown:
        _need_whole("--markdown", name, as_json)
        from fedflow.methods.catalogue import catalogue

        print(catalogue(), end="")
        return
    families = remembered("methods", _families)
    columns = ("name", "method", "serves", "idea")
    if name is None and as_json:
        print_json([{"family": title} | row for title, _, rows in families for row in records(columns, rows)])
        return
    if name is None:
        for title, description, rows in families:
            print_table(f"{title}: {description}", columns, rows)
            print_line("")
        return
    labels = {row[0]: row[1] for _, _, rows in families for row in rows}
    name = called(name, labels)
    if name not in labels:
        raise unknown_name("method.name", name, labels, "fedflow methods")
    page = remembered(f"method-{name}", lambda: _method(name))
    if as_json:
        _, columns, rows = page["options"]
        print_json({"name": name} | page | {"options": records(columns, rows)})
        return
    console.print(Text.assemble((page["label"], "bold"), f"  ({name})\n"))
    print_text(page["text"])
    print_table(*page["options"])
    console.print(page["traffic"], highlight=False)
    if page["published"]:
        console.print(f"Published results: {'; '.join(page['published'])}", highlight=False)


def _families() -> list[Any]:
    from fedflow.methods.catalogue import listed

    return listed()


def _method(name: str) -> dict[str, Any]:
    """The page of a method."""
    from fedflow.methods import METHODS
    from fedflow.methods.catalogue import describe, example

    page = describe(METHODS[name])
    traffic = f"{page.down:,} bytes down, {page.up:,} bytes up"
    return {
        "label": page.label,
        "text": page.text,
        "options": options_table(page.options),
        "traffic": f"Traffic per client and round on {example(METHODS[name])} for CIFAR-10: {traffic}",
        "published": page.published,
    }


def procedures(
    name: Annotated[str | None, typer.Argument(help="Explain this procedure.")] = None,
    markdown: Markdown = False,
    as_json: Json = False,
    root: Root = Path(),
) -> None:
    """List the procedures (experiments without federated rounds), or explain one.

    Example: `fedflow procedures coreset`. Entries are the names under `procedures` in params.yaml.
    """
    if markdown:
        _need_whole("--markdown", name, as_json)
        from fedflow.procedures.catalogue import catalogue

        print(catalogue(), end="")
        return
    pages = remembered("procedures", _procedures)
    if name is None:
        entries = _entries(root / "params.yaml")
        rows = []
        for registered, page in pages.items():
            names = ", ".join(entry for entry, of in entries.items() if of == registered)
            rows.append((registered, page["label"], names, page["idea"]))
        _print_list("procedures", ("name", "procedure", "entries", "idea"), rows, as_json)
        return
    if name not in pages:
        raise unknown_name("procedure", name, pages)
    page, measured = pages[name], ("name", "of", "meaning", "unit", "better")
    if as_json:
        _, columns, rows = page["options"]
        numbers = records(measured, page["numbers"])
        print_json({"name": name} | page | {"options": records(columns, rows), "numbers": numbers})
        return
    console.print(Text.assemble((page["label"], "bold"), f"  ({name})\n"))
    print_text(page["text"])
    print_table(*page["options"])
    print_table("numbers", measured, page["numbers"])


def _procedures() -> dict[str, Any]:
    """Pages of the procedures by name."""
    from fedflow.procedures.catalogue import measured, pages

    return {
        page.name: {
            "label": page.label,
            "idea": page.idea,
            "text": page.text,
            "options": options_table(page.options),
            "numbers": [*measured(page)],
        }
        for page in pages()
    }


def _entries(params: Path) -> dict[str, str]:
    """The procedure of every entry of `procedures` in a params.yaml, unchecked; {} without a file."""
    from fedflow.project.yaml_text import yaml_file

    try:
        values = yaml_file(params)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise FedflowError(f"{params}: {reason(error)}") from error
    section = _mapping(_mapping(values, str(params)).get("procedures"), "procedures")
    return {
        name: _mapping(entry, f"procedures.{name}").get("procedure") or name
        for name, entry in section.items()
    }


def _mapping(value: Any, field: str) -> dict[str, Any]:
    """A section of a params.yaml, {} if empty."""
    if value is not None and not isinstance(value, dict):
        raise BadInput(field, value, "a mapping")
    return value or {}


def schemes(
    name: Annotated[str | None, typer.Argument(help="Explain this scheme.")] = None,
    markdown: Markdown = False,
    as_json: Json = False,
    pictures: Annotated[
        Path | None, typer.Option(help="Write the catalogue's pictures to this folder.")
    ] = None,
) -> None:
    """List the partition schemes, or explain one: order of sampling, source, parameters.

    Example: `fedflow schemes dirichlet`.
    """
    for option, given in (("--markdown", markdown), ("--pictures", pictures is not None)):
        if given:
            _need_whole(option, name, as_json)
    if markdown:
        from fedflow.partition.catalogue import catalogue

        print(catalogue(), end="")
    if pictures is not None:
        from fedflow.pictures.labels import draw_schemes

        draw_schemes(pictures)
    if markdown or pictures is not None:
        return
    pages = remembered("schemes", _schemes)
    if name is None:
        rows = [(scheme, page["idea"]) for scheme, page in pages.items()]
        _print_list("partition schemes", ("name", "what it does"), rows, as_json)
        return
    if name not in pages:
        raise unknown_name("partition.scheme", name, pages, "fedflow schemes")
    if as_json:
        _, columns, rows = pages[name]["options"]
        print_json({"name": name} | pages[name] | {"options": records(columns, rows)})
        return
    print_text(pages[name]["text"])
    print_table(*pages[name]["options"])
    console.print(f"In params.yaml, under partitions:  mine: {pages[name]['example']}", highlight=False)


def _schemes() -> dict[str, Any]:
    """Pages of the schemes by name."""
    import fedflow.methods  # noqa: F401 # and with it plug-ins, which may register schemes
    from fedflow.partition import SCHEMES
    from fedflow.partition.catalogue import describe

    pages = {name: describe(scheme) for name, scheme in sorted(SCHEMES.items())}
    return {
        name: {
            "idea": page.idea,
            "text": page.text,
            "options": options_table(page.options),
            "example": str(page.pictures.get(name, f"{{dataset: mnist5k, scheme: {name}, clients: 10}}")),
        }
        for name, page in pages.items()
    }


def partitions(context: typer.Context, as_json: Json = False, root: Root = Path()) -> None:
    """List the partitions of params.yaml, or compare some: `fedflow partitions compare A B`."""
    if context.invoked_subcommand is not None:
        if as_json or root != Path():
            given, command = "--json" if as_json else "--root", context.invoked_subcommand
            raise BadInput(given, f"before {command}", f"it after {command}, if {command} has it")
        return
    params = root / "params.yaml"
    content = params.read_bytes() if params.is_file() else b""
    entries = remembered(f"partitions-{short(root.resolve())}", lambda: _partitions(root), content)
    for entry in entries:
        entry["made"] = (root / "data" / "partitions" / entry["name"] / "summary.json").is_file()
    if as_json:
        print_json(entries)
        return
    rows = [
        (
            entry["name"],
            entry["dataset"],
            entry["scheme"],
            str(entry["clients"] or "all"),
            "yes" if entry["made"] else "",
            ", ".join(f"{name} {cut(str(value), 60)}" for name, value in entry["parameters"].items()),
        )
        for entry in entries
    ]
    print_table("partitions", ("name", "dataset", "scheme", "clients", "made", "parameters"), rows)


def _partitions(root: Path) -> list[dict[str, Any]]:
    """Every partition of params.yaml."""
    params = load(root)
    entries = {name: params.partition(name) for name in params.partitions}
    return [
        {
            "name": name,
            "dataset": entry.dataset,
            "scheme": entry.scheme,
            "clients": entry.clients,
            "parameters": entry.parameters.as_dict(),
        }
        for name, entry in entries.items()
    ]


def compare(
    names: Annotated[list[str], typer.Argument(help="Names under `partitions` in params.yaml.")],
    out: Annotated[Path, typer.Option(help="File of the picture: .png, .svg or .pdf.")] = Path(
        "heterogeneity.png"
    ),
    settings: Set = None,
    root: Root = Path(),
) -> None:
    """Compare how heterogeneous partitions are, by every distance between clients.

    Example: `fedflow partitions compare mnist5k-dir mnist5k-groups`.
    """
    from fedflow.data import load_prepared
    from fedflow.heterogeneity.measures import MEASURES
    from fedflow.partition import load_partition
    from fedflow.partition.compare import compare, has_classes, table
    from fedflow.pictures.comparison import draw_comparisons
    from fedflow.pictures.drawing import check_picture
    from fedflow.stages.partition import prepare_partition
    from fedflow.stages.prepare import prepare_dataset

    params = load(root, settings)
    check_once("names", names)
    entries = {name: params.partition(name) for name in names}  # all names are checked first
    picture = root / out
    check_picture(picture, "--out")
    comparisons, unlabeled = [], []
    for name, entry in entries.items():
        with console.status(Text(f"{name}: comparing clients ...")):
            dataset = load_prepared(prepare_dataset(params, entry.dataset, root))
            partition = load_partition(prepare_partition(params, name, root))
            comparisons.append(compare(partition, dataset, name=name))
        unlabeled += [] if has_classes(partition, dataset) else [name]
    measured = table(comparisons)
    rows = [
        (MEASURES[m].title if m in MEASURES else m.replace("_", " "), *(f"{v:.4g}" for v in measured[m]))
        for m in measured.columns
    ]
    print_table("how clients differ: mean over pairs of clients", ("measure", *names), rows)
    if unlabeled:
        print_line(f"no label measures, because samples have no class: {', '.join(unlabeled)}")
    draw_comparisons(comparisons, picture)
    print_line(f"picture: {picture}")


def export(
    name: Annotated[str, typer.Argument(help="A name under `partitions` in params.yaml.")],
    out: Annotated[
        Path, typer.Argument(help="File to write: .json, .yaml, .npz or .parquet; a folder for pfllib.")
    ],
    form: Annotated[
        str,
        typer.Option(
            help="lists, fl-bench, fedlab, niid-bench, flwr or pfllib: the tool that the file is for."
        ),
    ] = "lists",
    settings: Set = None,
    root: Root = Path(),
) -> None:
    """Write the rows of every client to a file that other tools and `scheme: given` can read.

    Example: `fedflow partitions export mnist5k-dir clients.json`.
    """
    from fedflow.data import load_prepared
    from fedflow.partition import load_partition
    from fedflow.partition.after.inputs import STEPS
    from fedflow.partition.lists import FORMS, lists_of, write_lists
    from fedflow.stages.partition import prepare_partition
    from fedflow.stages.prepare import prepare_dataset

    if form not in FORMS:
        raise unknown_name("form", form, FORMS)
    params = load(root, settings)
    dataset = load_prepared(prepare_dataset(params, params.partition(name).dataset, root))
    partition = load_partition(prepare_partition(params, name, root))
    changed = [step for step in STEPS if partition.params.get(step)]
    if changed and form == "pfllib":
        raise BadInput("form", form, f"lists or fl-bench, because {changed[0]} changes clients' samples")
    write_lists(lists_of(partition), root / out, form, dataset)
    print_line(root / out)
    without = {
        "groups": partition.groups is not None,
        "newcomers": partition.newcomers,
        "public": len(partition.public),
    }
    if left := [*(fact for fact, there in without.items() if there), *changed]:
        print_line(f"left out, because lists of rows cannot hold them: {', '.join(left)}")


def datasets(
    name: Annotated[str | None, typer.Argument(help="Explain the fields of this source.")] = None,
    as_json: Json = False,
) -> None:
    """List the data sources, and the file or download that each one uses, or explain the fields of one.

    Example: `FEDFLOW_DATA=/data fedflow datasets` also searches that folder.
    """
    root = Path(os.environ.get("FEDFLOW_DATA") or Path("data") / "raw")
    held = sorted(str(file) for file in root.iterdir()) if root.is_dir() else []
    rows = remembered(f"datasets-{short(root.resolve())}", _datasets, *held)
    if name is not None:
        abouts = {row[0]: row[-1] for row in rows}
        name = called(name, {source: title for source, title, *_ in rows})
        if name not in abouts:
            raise unknown_name("data.source", name, abouts, "fedflow datasets")
        section = f"data.{name}" if f"data.{name}" in _sections() else "data"
        if not as_json:
            print_line(f"{name}: {abouts[name]}")
        settings(section, as_json)
        if section != "data" and not as_json:
            print_line("`fedflow settings data` explains the fields of all sources")
        return
    _print_list(
        f"data sources (data root: {root})", ("name", "dataset", "images", "description"), rows, as_json
    )


def _datasets() -> list[tuple[str, ...]]:
    """A row per source, with the path of its images."""
    from fedflow.data import SOURCES, data_root

    root = data_root()
    return [
        (s.name, s.title, s.where(root) or ("download" if s.needs_network else "missing"), s.about)
        for s in SOURCES.values()
    ]


def models(as_json: Json = False) -> None:
    """List the network architectures, for `models` in params.yaml.

    Example: `fedflow models`, then `fedflow run ... --set models.mnist5k=cnn_mnist`.
    """
    columns, *rows = remembered("models", _models)
    _print_list("architectures", columns, rows, as_json)


def _models() -> list[list[str]]:
    """Column names, then a row per architecture."""
    from fedflow.models import describe

    rows = describe()
    return [[*rows[0]], *([str(value) for value in row.values()] for row in rows)]


def settings(
    name: Annotated[str | None, typer.Argument(help="A section, such as run.timing, or a field.")] = None,
    as_json: Json = False,
) -> None:
    """List the sections of params.yaml, or explain the fields of one: default, accepted values, meaning.

    The name of a field alone explains it in every section. Example: `fedflow settings run`.
    """
    sections = _sections()
    if name is None:
        rows = [(name, section["about"]) for name, section in sections.items()]
        _print_list("sections of params.yaml", ("section", "meaning"), rows, as_json)
        return
    fields = {at: sections[section["same"] or at]["rows"] for at, section in sections.items()}
    full = [(f"{at}.{field}", *rest) for at in sections for field, *rest in fields[at]]
    rows = fields.get(name) or [row for row in full if name in (row[0], row[0].rpartition(".")[2])]
    if not rows:
        raise unknown_name("settings", name, sections, "fedflow settings", elsewhere=place(name))
    if as_json:
        print_json(records(FIELDS, rows))
        return
    heading = [f"{name}: {sections[name]['about']}"] if name in sections else []
    print_table("".join(heading), FIELDS, rows)
    if name in sections and (command := sections[name]["command"]):
        print_line(f"`{command} NAME` explains further fields")
    for section in sections:
        if section.endswith(f".{name}"):
            print_line(f"`fedflow settings {section}` explains the section {section}")


def _sections() -> dict[str, dict[str, Any]]:
    """The sections of params.yaml by name."""
    return {section["name"]: section for section in remembered("settings", _settings)}


def _settings() -> list[dict[str, Any]]:
    """Every section with the rows of its fields."""
    from fedflow.config.explained import ELSEWHERE, sections
    from fedflow.settings import written

    return [
        {"name": section.name, "about": section.doc, "same": section.same}
        | {"rows": [(r["name"], written(r["default"]), r["accepts"], r["doc"]) for r in section.rows]}
        | {"command": ELSEWHERE.get(section.name, "")}
        for section in sections()
    ]


def published(
    name: Annotated[str | None, typer.Argument(help="Print the tables of this source in Markdown.")] = None,
    as_json: Json = False,
) -> None:
    """List the published tables that reports compare with, or print the tables of one source.

    Example: `fedflow published aaggff`.
    """
    tables_by_book = remembered("published", _published)
    columns = ("rows", "unit", "from", "table")
    if name is not None and name not in tables_by_book:
        raise unknown_name("published", name, tables_by_book)
    if as_json:
        print_json(
            [
                {"name": book, "source": content["source"], "tables": records(columns, content["rows"])}
                for book, content in tables_by_book.items()
                if name in (None, book)
            ]
        )
        return
    if name is None:
        for book, content in tables_by_book.items():
            print_table(f"{book}: {content['source']}", columns, content["rows"])
            print_line("")
        return
    print(tables_by_book[name]["text"], end="")


def _published() -> dict[str, Any]:
    """Title, tables and text of every source."""
    from fedflow.claims.books import books, markdown

    return {
        name: {
            "source": book.source,
            "text": markdown(book),
            "rows": [
                (str(len(table.rows)), table.unit or "-", table.origin, table.label) for table in book.tables
            ],
        }
        for name, book in books().items()
    }


def _need_whole(option: str, name: str | None, as_json: bool) -> None:
    """Refuse a name and --json with an option that writes the whole catalogue in its format."""
    if as_json:
        raise FedflowError(f"{option} or --json, not both")
    if name is not None:
        raise BadInput(option, "with a name", f"either {option}, which writes the whole catalogue, or a name")


def _print_list(title: str, columns: Sequence[str], rows: list[Any], as_json: bool) -> None:
    print_json(records(columns, rows)) if as_json else print_table(title, columns, rows)


def schema() -> None:
    """Print a JSON schema of params.yaml, for editors that complete and check YAML.

    Example: `fedflow schema > .fedflow/params.schema.json` (docs/howto/run.md).
    """
    print(json.dumps(remembered("schema", _schema), indent=1))


def _schema() -> dict[str, Any]:
    from fedflow.config.schema import params_schema

    return params_schema()
