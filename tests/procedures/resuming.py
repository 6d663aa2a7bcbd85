"""A procedure that is interrupted, resumed and shared out must end as one that runs through."""

from pathlib import Path

import pytest
from command import files_below, make_project, recorded_runs
from support import Workers

from fedflow.config import load_params
from fedflow.stages import steps
from fedflow.stages.procedure import ProcedureRun, run_procedure


def ends_alike(
    folder: Path, params: str, name: str, patch: pytest.MonkeyPatch, interrupt: int, total: int
) -> Path:
    """Runs interrupted after ``interrupt`` of ``total`` steps, or on 2 workers, end as a whole one.

    The interrupted run is one run of the record. Returns the folder of the results.
    """
    patch.delenv("MLFLOW_TRACKING_URI", raising=False)
    patch.setattr(steps, "BLOCK", 0)  # a step of every part

    def project(label: str) -> ProcedureRun:
        root = make_project(folder / label, params)
        return ProcedureRun(load_params(root / "params.yaml"), name, 0, root)

    def stop(done: int, of: int) -> None:
        assert of == total
        if done == interrupt:
            raise KeyboardInterrupt

    whole = project("whole")
    run_procedure(whole)
    expected = files_below(whole.folder)
    shared = project("workers")
    run_procedure(shared, Workers(2))
    assert files_below(shared.folder) == expected
    broken = project("interrupted")
    with pytest.raises(KeyboardInterrupt):
        run_procedure(broken, listeners=[stop])
    assert files_below(broken.folder) == {}
    run_procedure(broken)
    assert files_below(broken.folder) == expected
    (run,) = [run for run in recorded_runs(broken.root) if run.info.run_name == f"{name} seed 0"]
    assert run.info.status == "FINISHED" and run.data.tags["fedflow.resumed"] == "1"
    return whole.folder
