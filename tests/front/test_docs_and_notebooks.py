"""The code of docs/python.md and of the notebooks runs, from top to bottom, as they are."""

import re
from pathlib import Path

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from fedflow.project.templates import HOME

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    known: dict = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL):
        exec(compile(block, "docs/python.md", "exec"), known)
    assert len(known["both"].table) == 3 and known["both"].table.loc["FedAvg", "seeds"] == 2
    assert known["recorded"].folder == Path("study/results/digits-iid/scaffold/0")
    assert (tmp_path / "comparison.pdf").stat().st_size > 1000


def test_the_method_of_the_tutorial_runs_and_is_fedavg_without_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFLOW_CACHE", str(tmp_path / "cache"))
    known: dict = {}
    first, *_ = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "tutorials" / "own-method.md").read_text(), re.DOTALL
    )
    exec(compile(first.replace("rounds=10", "rounds=2, progress=False"), "own-method.md", "exec"), known)
    average, again, other = (list(run.model().parameters()) for run in known["runs"])
    assert all(map(torch.equal, average, again)) and not all(map(torch.equal, average, other))


def shown() -> dict[str, str]:
    """All code that users read or copy, by file: pages, notebooks, examples, and what `new` writes."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    code = {
        str(page): "".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)) for page in pages
    }
    code |= {str(file): file.read_text() for file in [*NOTEBOOKS, *(ROOT / "examples").glob("*.py")]}
    return code | {f"new {file.stem}": file.read_text() for file in (HOME / "new").iterdir()}


def test_all_code_for_users_imports_nothing_but_fedflow() -> None:
    inside = re.compile(r"\b(from fedflow\.\S+|import fedflow\.\S+)")
    assert len(shown()) > 30 and sum("import fedflow as ff" in text for text in shown().values()) > 10
    assert not {name: found[0] for name, text in shown().items() if (found := inside.search(text))}


@pytest.mark.parametrize("printed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_example_of_the_first_pages_runs(printed: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is printed, or one round on the small images."""
    readme, index = ((ROOT / page).read_text() for page in ("README.md", "docs/index.md"))
    first, method = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (other,) = re.findall(r"```python\n(.*?)```", index, re.DOTALL)
    assert (
        other.splitlines()[:-1] == first.splitlines()[:-1] and other.splitlines()[-1] == "ff.compare(*runs)"
    )
    assert "rounds=10" in first and '"mnist5k"' in first
    first = first.replace("rounds=10", "rounds=10, progress=False")
    if not printed:
        first = first.replace("rounds=10", "rounds=1").replace("mnist5k", "digits")
    known: dict = {}
    exec(compile(first, "README.md", "exec"), known)
    runs, ff = known["runs"], known["ff"]
    assert len(ff.compare(*runs).table) == 3 and len(runs[2].clients) == 10
    assert isinstance(runs[2].model(client=7), torch.nn.Module)
    if printed:
        (shown,) = re.findall(r"```text\n(.*?)```", readme, re.DOTALL)
        there, here = (
            [line.split() for line in text.splitlines()[-3:]] for text in (shown, capsys.readouterr().out)
        )
        for (name, *there_values), (same, *here_values) in zip(there, here, strict=True):
            assert name == same  # the last digit depends on the processor
            assert [*map(float, there_values)] == pytest.approx([*map(float, here_values)], abs=0.021)
    exec(compile(method, "README.md", "exec"), known)
    settings: dict = {"data": "digits", "partition": ff.iid(clients=2), "rounds": 1, "progress": False}
    mine, built_in = (ff.run(method=each, **settings) for each in (known["Proximal"](), ff.FedProx()))
    assert all(map(torch.equal, mine.model().parameters(), built_in.model().parameters()))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=[file.stem for file in NOTEBOOKS])
def test_no_cell_hides_what_it_returns(file: Path) -> None:
    """A semicolon is a habit of pyplot, which shows its figures; here it leaves no picture."""
    cells = nbformat.read(file, as_version=4).cells
    assert not [c.source for c in cells if c.cell_type == "code" and c.source.rstrip().endswith(";")]


def run(file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, rounds: int | None = None) -> None:
    """Execute a notebook, with other ``rounds`` if given, as its reader does."""
    monkeypatch.setenv("FEDFLOW_CACHE", str(folder / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(file, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "notebooks are kept without outputs"
    for cell in notebook.cells:
        cell.source = shortened(cell.source, rounds)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    drawn = [cell for cell in notebook.cells if ".plot(" in cell.source]
    assert all(any("image/png" in one.get("data", {}) for one in cell.outputs) for cell in drawn)
    assert drawn or file.stem != "compare"


def shortened(code: str, rounds: int | None) -> str:
    return code if rounds is None else re.sub(r'"rounds": \d+', f'"rounds": {rounds}', code)


@pytest.mark.full
@pytest.mark.parametrize("file", NOTEBOOKS, ids=[file.stem for file in NOTEBOOKS])
def test_notebooks_run(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(file, tmp_path, monkeypatch)


@pytest.mark.full
def test_a_notebook_shows_its_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(ROOT / "docs" / "notebooks" / "compare.ipynb", tmp_path, monkeypatch, rounds=1)


@pytest.mark.parametrize("file", NOTEBOOKS, ids=[file.stem for file in NOTEBOOKS])
def test_the_code_of_notebooks_runs_on_one_round(file: Path) -> None:
    known: dict = {}
    for cell in nbformat.read(file, as_version=4).cells:
        if cell.cell_type == "code":
            exec(compile(shortened(cell.source, 1), str(file), "exec"), known)
