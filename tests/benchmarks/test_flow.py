"""The flow's cost, measured on runs that users could have started."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
PROGRAM = """
import json
from benchmarks import flow
flow.ROUNDS = flow.PARAMS["run"]["rounds"] = flow.PARAMS["run"]["evaluate_every"] = 3
flow.TURNS, flow.REPEATS, flow.SHORT, flow.DEVICE = 1, 1, 50, 0.01
print(json.dumps(flow.main()))
"""


@pytest.mark.slow
def test_rounds_of_a_whole_run_are_timed(tmp_path) -> None:
    environment = os.environ | {"PYTHONPATH": str(HOME), "HOME": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ran.stdout.splitlines()[-1])
    assert 0 < found["ratio"]["min"] <= found["ratio"]["max"]
    short = found["short_rounds"]
    assert short["bare_seconds"]["min"] > 0.01 and short["flow_seconds"]["min"] > 0.01
