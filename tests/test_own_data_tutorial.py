"""docs/tutorials/own-data.md from an empty folder: every block works, in the order of the page."""

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
import yaml
from command import fedflow

from fedflow.config import load_params
from fedflow.data import SOURCES

PAGE = (Path(__file__).parents[1] / "docs" / "tutorials" / "own-data.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.M)
RUNS = [["run", "--partition", "hospitals", "--method", name] for name in ("fedavg", "local", "ditto")]


def test_blocks_work_from_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As printed, but with one round, one seed, and without the servers of `fedflow sweep`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    called = []
    for kind, text in BLOCKS:
        if kind == "yaml":
            params = yaml.safe_load(text) | {"engine": {"executor": "inline"}}
            params["run"] = {"rounds": 1}
            (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
        if kind == "python":
            exec(compile(text, "make_table.py", "exec"), {})
        for words in map(shlex.split, text.splitlines() if kind == "bash" else ()):
            if words[0] != "fedflow":
                assert words == ["python", "make_table.py"]
                continue
            for call in RUNS if words[1:] == ["sweep"] else [words[1:]]:
                done = fedflow(capsys, *call)
                assert done.code == 0, (call, done.err)
                called.append(call[0])
    assert called == ["doctor", "prepare", "partition", "partitions", *["run"] * 3, "compare", "report"]
    counts = pd.read_csv("data/partitions/hospitals/label_counts.csv")
    first, last = counts.iloc[0], counts.iloc[-1]
    assert (first["0"], first.sum() - first["client"]) == (1, 68)
    assert (last["0"], last.sum() - last["client"]) == (65, 75)


@pytest.mark.slow  # nine runs
def test_the_printed_table_is_reproduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    code, params, printed = (
        next(text for kind, text in BLOCKS if kind == k) for k in ("python", "yaml", "text")
    )
    exec(compile(code, "make_table.py", "exec"), {})
    (tmp_path / "params.yaml").write_text(params + "engine: {executor: inline}\n")
    for seed in load_params(tmp_path / "params.yaml").grid.seeds:
        for call in RUNS:
            assert fedflow(capsys, *call, "--seed", seed).code == 0
    shown = fedflow(capsys, "compare", "hospitals/*").out
    for line in printed.splitlines()[1:]:
        name, *cells = re.split(r"\s{2,}", line)
        there = next(row for row in shown.splitlines() if row.startswith(name))
        assert cells == re.split(r"\s{2,}", there)[1 : 1 + len(cells)]


def test_formats_of_the_last_table_are_sources() -> None:
    sources = set(re.findall(r"source: (\w+)", PAGE))
    assert sources == {"table", "npz", "folder"} and sources <= SOURCES.keys()
