"""docs/tutorials/own-method.md, step by step: from a clone to the method's row in a LaTeX table."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
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


def test_every_block_is_one_to_copy():
    kinds = re.findall(r"^```(\w*)\n.*?^```$", PAGE, re.DOTALL | re.M)
    assert set(kinds) == {"bash", "python", "latex"} and len(STEPS) == 5
    for step in STEPS:
        for name, text in blocks(step):
            assert "..." not in text
            if name != "bash":
                compile(text, name, "exec")


@pytest.mark.slow  # ten minutes on two busy cores: nine runs of 20 rounds, and the battery of a method
@pytest.mark.timeout(3600)
def test_a_stranger_reaches_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As printed, except that the clone is a copy and its environment that of the tests."""
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

    said: dict[str, str] = {}
    for step in STEPS:
        before = time.monotonic(), os.times()
        for name, text in blocks(step):
            if name != "bash":
                (clone / name).write_text(text)
            elif "git clone" not in text:
                done = subprocess.run(
                    ["bash", "-ec", f"source .venv/bin/activate\n{text}"],
                    cwd=clone, capture_output=True, text=True, timeout=1800, check=False,
                )  # fmt: skip
                said[text] = done.stdout
                assert done.returncode == 0, f"{text}: {done.stdout}{done.stderr}"
        after = os.times()
        computed = after.children_user + after.children_system
        computed -= before[1].children_user + before[1].children_system
        print(f"{step.splitlines()[0]}: {time.monotonic() - before[0]:.0f} s, {computed:.0f} s of processors")

    rows = (clone / "paper" / "mnist5k-dir-accuracy.tex").read_text()
    assert r"\toprule" in rows and all(f"{name} &" in rows for name in ("FedAvg", "Ditto", "Halfway"))
    pictures = [*(clone / "paper").glob("mnist5k-dir-*.pdf")]
    assert pictures and "@" in (clone / "paper" / "methods.bib").read_text()
