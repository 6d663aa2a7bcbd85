"""The batch script of docs/clusters.md runs, with an `srun` that starts the tasks on this machine.

So does the last command that docs/tutorials/cluster.md gives it, and results are reported at home.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from command import fedflow

HOME = Path(__file__).parents[1]
PARAMS = """
data: {digits: {source: digits}}
models: {digits: {name: mlp, options: {hidden: [8]}}}
partitions: {mnist5k-dir: {dataset: digits, scheme: label_skew, fraction: 0.2, clients: 10}}
training: {epochs: 1, batch_size: 64, lr: 0.1}
run: {rounds: 2, participation: 1.0}
methods: {fedavg: {}}
grid: {datasets: [digits], partitions: [mnist5k-dir], methods: [fedavg], seeds: [0]}
engine: {device: cpu}
"""
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for task in $(seq $SLURM_NTASKS); do "$@" & done
wait
"""


def script() -> str:
    text = (HOME / "docs" / "clusters.md").read_text()
    return text.split("## Submit to SLURM")[1].split("```bash\n")[1].split("```")[0]


def tutorial() -> tuple[str, list[str]]:
    """The command for a whole grid, and the commands at home."""
    text = (HOME / "docs" / "tutorials" / "cluster.md").read_text()
    _, sweep, *_ = re.split(r"```bash\n|```\n", text.split("## 4. On SLURM")[1])
    _, home, *_ = text.split("## 5. Bring the results home")[1].split("```")
    return sweep, home.split("\n")


def options() -> dict[str, str]:
    """What the job asks for, by the names of sbatch."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", script(), re.M))


def free_job() -> int:
    """The number of a job whose ports are free."""
    for number in range(os.getpid(), os.getpid() + 1000):
        with socket.socket() as api, socket.socket() as dask, suppress(OSError):
            api.bind(("127.0.0.1", 10000 + number % 10000))
            dask.bind(("127.0.0.1", 20000 + number % 10000))
            return number
    raise AssertionError("no free ports")


def test_the_job_asks_for_as_many_tasks_as_its_nodes_have():
    asked = options()
    assert len(asked) == script().count("#SBATCH") and script().startswith("#!/bin/bash\n#SBATCH")
    assert int(asked["ntasks"]) == int(asked["nodes"]) * int(asked["ntasks-per-node"])


@pytest.mark.slow  # minutes: a Prefect server, a scheduler and workers are started
@pytest.mark.parametrize("whole_grid", [False, True])
def test_the_job_runs(
    whole_grid: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "params.yaml").write_text(PARAMS)
    bin = tmp_path / ".venv" / "bin"
    bin.mkdir(parents=True)
    python = shlex.quote(str(Path(sys.executable).parent))
    (bin / "activate").write_text(f"export PATH={shlex.quote(str(bin))}:{python}:$PATH\n")
    for name, text in (("srun", SRUN), ("hostname", "#!/bin/bash\necho 127.0.0.1 10.0.0.1\n")):
        (bin / name).write_text(text)
        (bin / name).chmod(0o755)
    job = script()
    if whole_grid:
        job = job[: job.index("fedflow run ")] + tutorial()[0]
    (tmp_path / "job.sh").write_text(job)
    for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    environment = os.environ | {
        "SLURM_NTASKS": "2",
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_JOB_ID": str(free_job()),
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": str(HOME),
    }
    with (tmp_path / "said").open("w") as said:
        started = subprocess.Popen(
            ["bash", "job.sh"],
            cwd=tmp_path,
            env=environment,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = started.wait(timeout=540)
        finally:
            os.killpg(started.pid, signal.SIGKILL)  # as SLURM ends what a job has left
    told = "\n".join((tmp_path / name).read_text() for name in ("said", "workers.log"))
    assert code == 0, told
    assert (tmp_path / "results/mnist5k-dir/fedavg/0/metrics.json").exists()
    assert told.count("Registered to") == 2, told
    if whole_grid:
        bring_home(tmp_path, tmp_path / "home", monkeypatch, capsys)


def bring_home(
    there: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of the tutorial, with copies instead of `rsync`; there are no runs outside the grid."""
    here.mkdir()
    shutil.copy(there / "params.yaml", here)
    monkeypatch.chdir(here)
    called = []
    for words in (shlex.split(line, comments=True) for line in tutorial()[1]):
        if words[:1] == ["rsync"] and "results" in words[-1]:
            assert words[2:] == ["cluster:project/results/", "results/"]
            shutil.copytree(there / "results", here / "results")
        if words[:1] == ["fedflow"]:
            done = fedflow(capsys, *words[1:])
            assert done.code == 0, done.err
            called.append(words[1])
    assert called == ["ls", "report"] and (here / "report" / "index.html").is_file()
