"""docs/tutorials/own-method.md, step by step: from a clone to the method's row in a LaTeX table."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
PAGE = (HOME / "docs" / "tutorials" / "own-method.md").read_text()
STEPS = re.split(r"^## ", PAGE, flags=re.M)[1:]
# What `pip install -e FOLDER` does, without an index.
PIP = """#!{python}
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from command import install
install(Path({site!r}), Path(sys.argv[-1]))
"""


def blocks(step: str) -> list[tuple[str, str]]:
    """Each file's name, or "bash", and the block: code belongs to the file that was named last before it."""
    found = []
    for match in re.finditer(r"^```(bash|python)\n(.*?)^```", step, re.DOTALL | re.M):
        kind, text = match.groups()
        name = re.findall(r"`([\w/-]+\.py)`", step[: match.start()])[-1] if kind == "python" else kind
        found.append((name, text))
    return found


def bash(text: str, folder: Path) -> None:
    """Run commands in the environment of a clone; if they take too long, end them and what they started."""
    command = ["bash", "-ec", f"source .venv/bin/activate\n{text}"]
    started = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = started.communicate(timeout=1800)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        raise
    assert started.returncode == 0, f"{text}: {out}"


def test_every_block_is_one_to_copy():
    kinds = re.findall(r"^```(\w*)\n.*?^```$", PAGE, re.DOTALL | re.M)
    assert set(kinds) == {"bash", "python", "latex"} and len(STEPS) == 5
    for step in STEPS:
        for name, text in blocks(step):
            assert "..." not in text
            if name != "bash":
                compile(text, name, "exec")


@pytest.mark.slow  # minutes: the battery of a method, and nine runs
@pytest.mark.timeout(3600)
def test_a_stranger_reaches_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """As printed, but with 2 rounds; the clone is a copy, and its environment that of the tests."""
    clone, site = tmp_path / "fedflow", tmp_path / "site"
    site.mkdir()
    unwanted = (".git", ".venv", "mlruns", "results", "report", "data", ".fedflow", ".prefect")

    def ignored(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if name == "__pycache__" or (folder == str(HOME) and name in unwanted)}

    shutil.copytree(HOME, clone, ignore=ignored)
    bin = clone / ".venv" / "bin"
    bin.mkdir(parents=True)
    paths = f"{bin}:{Path(sys.executable).parent}:$PATH"
    (bin / "activate").write_text(f"export PATH={paths} PYTHONPATH={shlex.quote(f'{clone}:{site}')}\n")
    (bin / "pip").write_text(PIP.format(python=sys.executable, tests=str(HOME / "tests"), site=str(site)))
    (bin / "pip").chmod(0o755)
    for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FEDFLOW_CACHE", str(tmp_path / "cache"))

    assert "--set run.rounds=20 " in PAGE
    request.addfinalizer(partial(bash, "python -m flows.server --stop", clone))
    for step in STEPS:
        before = time.monotonic(), os.times()
        for name, text in blocks(step):
            if name != "bash":
                (clone / name).write_text(text)
            elif "git clone" not in text:
                bash(text.replace("rounds=20", "rounds=2"), clone)
        after = os.times()
        computed = after.children_user + after.children_system
        computed -= before[1].children_user + before[1].children_system
        print(f"{step.splitlines()[0]}: {time.monotonic() - before[0]:.0f} s, {computed:.0f} s of processors")

    rows = (clone / "paper" / "mnist5k-dir-accuracy.tex").read_text()
    assert r"\toprule" in rows and all(f"{name} &" in rows for name in ("FedAvg", "Ditto", "Halfway"))
    pictures = [*(clone / "paper").glob("mnist5k-dir-*.pdf")]
    assert pictures and "@" in (clone / "paper" / "methods.bib").read_text()
