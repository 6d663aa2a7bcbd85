"""The README is short, its numbers are measured, and the commands of docs/howto/run.md run."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedflow.config import load_params

HOME = Path(__file__).parents[1]
README = (HOME / "README.md").read_text()
ELSEWHERE = ("source ", "dvc exp run", "make ")  # tests/test_pipeline.py has the second
SERVED = "fedflow ui"


def commands() -> list[str]:
    """The block under "Try the commands", without its comments."""
    page = HOME / "docs" / "howto" / "run.md"
    block = page.read_text().split("## Try the commands")[1].split("```")[1]
    return [line.split("  #")[0].strip() for line in block.strip().splitlines()]


def test_the_readme_is_short_and_starts_with_the_two_commands() -> None:
    assert len(README.split()) < 700
    assert re.findall(r"^make (\w+) ", README, re.M) == ["repro", "test"]


def test_the_grid_and_the_speed_of_the_readme_are_in_the_repository() -> None:
    grid = load_params(HOME / "params.yaml").grid
    sizes = f"{len(grid.partitions)} partitions x {len(grid.methods)} methods x {len(grid.seeds)} seeds"
    file = HOME / "benchmarks" / "results" / "cpu-peers-pfl.json"
    measured = json.loads(file.read_text())["measured"]["clients_1000"]
    ours, theirs = (measured[name]["client_steps_per_second"] for name in ("fedflow, compiled", "pfl"))
    assert sizes in README and f"makes {ours / theirs:.1f} times as many client steps" in README


@pytest.mark.slow  # two minutes: every command imports PyTorch anew
def test_the_commands_of_the_guide_run(tmp_path, monkeypatch):
    """In their order, in one project: the runs that some need are those of the grid."""
    params = yaml.safe_load((HOME / "params.yaml").read_text())
    params["run"]["rounds"] = 2
    params["engine"] = {"executor": "inline"}
    params["grid"] |= {"methods": ["fedavg", "scaffold"], "seeds": [0], "procedures": []}
    params["tuning"] = {"grid": {"training.lr": [0.03, 0.1]}, "rounds": 1, "widen": 0}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    for name in ("claims.yaml", "dvc.yaml"):
        if (HOME / name).exists():
            shutil.copy(HOME / name, tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(HOME))

    def run(command: str) -> str:
        words = [sys.executable, "-m", "fedflow.cli", *shlex.split(command)[1:]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
        return done.stdout

    run("fedflow sweep")
    said = {command: run(command) for command in commands() if not command.startswith((*ELSEWHERE, SERVED))}
    assert len(said) > 10 and all(said.values())
    assert re.search(r"ifca/0-\w+", "".join(said.values()))  # the changed settings have their own folder
    assert (tmp_path / "report" / "index.html").exists() and (tmp_path / "paper").is_dir()
    assert (tmp_path / "fedflow-halfway").is_dir()
