"""The generated reference pages have every method, option, command, metric and public name."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import fedflow
from typer.main import get_command

from fedflow.cli import app
from fedflow.config.schema import params_schema
from fedflow.front import names
from fedflow.methods import METHODS
from fedflow.metrics.table import METRICS
from fedflow.partition import SCHEMES
from fedflow.procedures import PROCEDURES
from fedflow.settings import explain

HOME = Path(__file__).parents[1]
sys.path.insert(0, str(HOME / "docs"))
import hooks  # noqa: E402
import reference  # noqa: E402

METHOD_NAMES = [name for name, cls in METHODS.items() if cls.__module__.startswith("fedflow.")]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference.pages()


def test_the_index_of_methods_is_current() -> None:
    index = reference.INDEX.read_text()
    assert index == reference.index(), "run `python docs/reference.py`"
    assert len(index.splitlines()) <= 130
    assert not [name for name in METHOD_NAMES if f'<a id="{name}"></a>' not in index]


def test_only_the_index_is_committed(pages: dict[str, str]) -> None:
    listed = subprocess.run(["git", "ls-files", "docs"], cwd=HOME, check=True, capture_output=True, text=True)
    committed = {name.removeprefix("docs/") for name in listed.stdout.splitlines()}
    assert committed & pages.keys() == {"methods.md"}


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_a_method_has_a_page_with_its_hyperparameters(name: str, pages: dict[str, str]) -> None:
    page = pages[f"methods/{name}.md"]
    assert page.startswith(f"# {METHODS[name].label} (`{name}`)")
    assert f"](methods/{name}.md)" in pages["methods.md"]
    assert not [row for row in explain(METHODS[name]) if not has_row(page, row["name"], row["doc"])]


def test_schemes_and_procedures_have_sections_with_their_parameters(pages: dict[str, str]) -> None:
    for page, registry in (("partitions.md", SCHEMES), ("procedures.md", PROCEDURES)):
        for name, cls in registry.items():
            _, _, section = pages[page].partition(f'<a id="{name}"></a>')
            section = section.partition("<a id=")[0]
            assert f"(`{name}`)" in section
            assert not [row for row in explain(cls) if not has_row(section, row["name"], row["doc"])], name


def test_every_field_of_params_yaml_is_explained(pages: dict[str, str]) -> None:
    text = "\n".join(pages.values())
    fields = set(described(params_schema()))
    assert len(fields) > 400
    sections = params_schema()["properties"]
    assert not [name for name in sections if f"\n## {name}\n" not in pages["reference/settings.md"]]
    explained = {(field, about) for field, about in fields if has_row(text, field, about)}
    assert {name for name, _ in fields - explained} == sections.keys()


def described(schema: Any) -> Iterator[tuple[str, str]]:
    """Name and description of all fields in a JSON schema."""
    if isinstance(schema, dict):
        for name, field in schema.get("properties", {}).items():
            if isinstance(field, dict) and "description" in field:
                yield name, field["description"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            yield from described(inner)


def has_row(text: str, name: str, about: str) -> bool:
    cell = about.replace("|", "\\|")
    lines = text.replace("\\_", "_").replace("&lt;", "<").splitlines()
    return any(line.startswith(f"| `{name}` |") and f"| {cell} |" in line for line in lines)


def test_every_command_and_option_is_listed(pages: dict[str, str]) -> None:
    _, *sections = pages["reference/commands.md"].split("\n## ")
    found = {section.partition("\n")[0]: section for section in sections}
    group: Any = get_command(app)
    called = {f"fedflow {name}": command for name, command in group.commands.items()}
    called |= {
        f"{path} {name}": inner
        for path, command in called.items()
        for name, inner in getattr(command, "commands", {}).items()
    }
    assert found.keys() == called.keys()
    for path, command in called.items():
        for parameter in command.params:
            shown = parameter.opts[0] if parameter.param_type_name == "option" else parameter.name
            assert shown in found[path], (path, shown)


def test_every_metric_and_public_name_is_listed(pages: dict[str, str]) -> None:
    assert not [name for name in METRICS if f"| `{name}` |" not in pages["reference/metrics.md"]]
    assert not [name for name in names.exported() if f"| `ff.{name}` |" not in pages["reference/names.md"]]


def test_no_text_becomes_an_element(pages: dict[str, str]) -> None:
    assert "&lt;class>/&lt;image>" in pages["reference/settings.md"]
    for name, text in pages.items():
        outside = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
        assert not re.findall(r"<(?!a id=|/a>)\w+", outside), name


def test_links_lead_to_generated_pages(pages: dict[str, str]) -> None:
    assert set(hooks.PAGES.values()) <= pages.keys()


def test_a_section_has_the_fields_that_params_yaml_accepts(capsys: pytest.CaptureFixture[str]) -> None:
    """Central training refuses what needs clients; parameters of a source are keys next to its name."""
    listed = {row["section"] for row in json.loads(fedflow(capsys, "settings", "--json").out)}
    assert {"training", "run.timing", "data.folder", "central.training.objective"} <= listed
    assert not listed & {"central.training.curriculum", "central.training.extensions.label_flip"}

    def fields(name: str) -> set[str]:
        return {row["field"] for row in json.loads(fedflow(capsys, "settings", name, "--json").out)}

    assert "lr" in fields("central.training") and not {"steps", "curriculum"} & fields("central.training")
    assert "source" in fields("data") and not any("parameters" in fields(name) for name in listed)
    assert fields("central.model") == fields("models") and fields("run.rounds") == {"run.rounds"}
    assert {"training.lr", "central.training.lr"} <= fields("lr") and "rank" in fields("models.lora")
    unknown = fedflow(capsys, "settings", "run.timng")
    assert unknown.code == 2 and "did you mean 'run.timing'?" in unknown.err
    assert "`fedflow schemes NAME` explains further fields" in fedflow(capsys, "settings", "partitions").out
