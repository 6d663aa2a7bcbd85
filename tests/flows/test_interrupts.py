"""Ctrl-C of a sweep, which runs the cells of a grid side by side under Prefect."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from services import wait_for


@pytest.mark.slow
def test_an_interrupted_sweep_ends_with_its_processes(api: str, root: Path) -> None:
    """Also by a second Ctrl-C. For Prefect, the first SIGTERM ends a flow; the next cell follows."""
    params = (root / "params.yaml").read_text().replace("rounds: 3", "rounds: 5000")
    grid = "grid: {central: [], procedures: [], datasets"
    params = params.replace("grid: {datasets", grid).replace("seeds: [0]", "seeds: [0, 1, 2]")
    (root / "params.yaml").write_text(params)
    command = [sys.executable, "-m", "fedflow.cli", "sweep", "--jobs", "2"]
    log = root / "log.txt"
    with log.open("w") as file:
        pipeline = subprocess.Popen(command, cwd=root, start_new_session=True, stdout=file, stderr=file)
    started: list[psutil.Process] = []
    try:
        wait_for(lambda: all(f"fedavg · seed {seed}: round" in log.read_text() for seed in (0, 1)), pipeline)
        started = psutil.Process(pipeline.pid).children(recursive=True)
        pipeline.send_signal(signal.SIGINT)
        time.sleep(1)
        os.killpg(pipeline.pid, signal.SIGINT)
        assert pipeline.wait(60) == 130
        assert "stopped; rerun the command to resume from the last checkpoint" in log.read_text()
        _, alive = psutil.wait_procs(started, timeout=20)
        assert not alive
    finally:
        pipeline.kill()
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()
