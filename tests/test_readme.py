"""The commands of the README run as they are printed, on a shorter grid."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

HOME = Path(__file__).parents[1]
ELSEWHERE = ("source ", "dvc exp run", "make ")  # tests/test_pipeline.py has the second
SERVED = "fedflow ui"


def commands() -> list[str]:
    """Those of the block under "Use it", without their comments."""
    block = (HOME / "README.md").read_text().split("## Use it")[1].split("```")[1]
    return [line.split("  #")[0].strip() for line in block.strip().splitlines()]


@pytest.mark.slow  # two minutes: every command imports PyTorch anew
def test_the_commands_of_the_readme_run(tmp_path, monkeypatch):
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
