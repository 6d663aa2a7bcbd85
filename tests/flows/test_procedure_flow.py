"""Procedures as Prefect flows: the same bytes on threads, processes and Dask."""

import os
import sys
from pathlib import Path

import pytest
from command import files_below

PROCEDURES = Path(__file__).parents[1] / "procedures"
sys.path.insert(0, str(PROCEDURES))
import walk  # noqa: E402

from fedflow.config import load_params  # noqa: E402
from fedflow.stages import steps  # noqa: E402
from fedflow.stages.procedure import ProcedureRun, run_procedure  # noqa: E402

LENGTH = "procedures.walk.length=4"


def contents(root: Path) -> dict[str, bytes]:
    (folder,) = (root / "runs" / "walk").iterdir()
    return files_below(folder)


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of every part is a block; processes find the procedure."""
    monkeypatch.setattr(steps, "BLOCK", 0)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROCEDURES), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture
def plain(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, bytes]:
    """The outcome of the plain loop, without Prefect."""
    inline = tmp_path_factory.mktemp("inline")
    (inline / "params.yaml").write_text((root / "params.yaml").read_text())
    run_procedure(ProcedureRun(load_params(inline / "params.yaml", [LENGTH]), "walk", 2, inline))
    return contents(inline)


@pytest.mark.parametrize(
    ("executor", "workers"),
    [
        ("threads", 4),
        pytest.param("threads", 1, marks=pytest.mark.full),
        pytest.param("processes", 2, marks=pytest.mark.full),
        pytest.param("dask", 2, marks=pytest.mark.slow),
    ],
)
def test_workers_give_the_bytes_of_the_plain_loop(api, root, seen, plain, executor, workers) -> None:
    from flows.procedure import procedure

    engine = [f"engine.executor={executor}", f"engine.workers={workers}"]
    metrics = procedure("walk", 2, [LENGTH, *engine], str(root))
    assert contents(root) == plain
    assert set(metrics) == {f"{name}/w{k}" for name in ("place", "mean") for k in range(3)}
    page = seen("procedure")
    assert page.flow_run.name == "walk · seed 2" and page.flow_run.state.is_completed()
    shards = {task.name for task in page.tasks}
    first = {f"step 1 · worker {w + 1} · {n}" for w, n in enumerate(shares(workers))}
    assert first <= shards and all(name.startswith("step ") for name in shards)
    assert {a.key: a.type for a in page.artifacts} == {
        "procedure-walk-2-summary": "table",
        "procedure-walk-2-mlflow": "markdown",
        "procedure-walk-2-progress": "progress",
    }
    assert [a.data for a in page.artifacts if a.type == "progress"] == [100.0]


def shares(workers: int) -> list[str]:
    """How three parts are divided."""
    return {1: ["3 parts"], 2: ["2 parts", "1 part"]}.get(workers, ["1 part"] * 3)


def test_a_failing_step_is_one_line(api, root, monkeypatch) -> None:
    from fedflow.errors import BadInput
    from flows.procedure import procedure

    def failing(self, *given):
        raise BadInput("length", 4, "less")

    monkeypatch.setattr(walk.Walk, "step", failing)
    with pytest.raises(BadInput, match=r"^procedures\.walk\.length: 4 .*expected less$"):
        procedure.with_options(retries=0)("walk", 2, [LENGTH], str(root))
