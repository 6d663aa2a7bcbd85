"""``make lint`` fails on a known vulnerability, and says so where it could not look."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

AUDIT = Path(__file__).parents[1] / ".ci" / "audit"
HOLE = {"id": "PYSEC-1", "fix_versions": ["2.0"], "aliases": [], "description": ""}
UNKNOWN = {"name": "one", "skip_reason": "Dependency not found on PyPI"}


def packages(*found: dict) -> str:
    return f"print({json.dumps(json.dumps({'dependencies': found, 'fixes': []}))})"


@pytest.mark.parametrize(
    ("program", "code", "says"),
    [
        (packages({"name": "one", "version": "1.0", "vulns": [HOLE]}), 1, "one 1.0: PYSEC-1, fixed in 2.0"),
        (packages({"name": "one", "version": "1.0", "vulns": []}, UNKNOWN), 0, "1 packages known, 0 vuln"),
        (packages(UNKNOWN), 0, "skipped, no advisory database can be reached"),
        ("exit('requests.exceptions.ConnectionError: ...')", 0, "skipped, no advisory database"),
        ("exit('unrecognized arguments')", 1, "pip-audit failed: unrecognized arguments"),
    ],
    ids=["vulnerable", "clean", "a mirror that knows nothing", "no network", "broken"],
)
def test_the_audit(tmp_path: Path, program: str, code: int, says: str) -> None:
    (tmp_path / "pip_audit.py").write_text(program)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, AUDIT]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert (done.returncode, says in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
