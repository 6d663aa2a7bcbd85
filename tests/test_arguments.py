"""Parameters of experiments and flows: refused in one line, before anything is made."""

from pathlib import Path

import numpy as np
import pytest
from command import make_project, one_line_error

from fedflow.config import load_params
from fedflow.errors import BadInput
from fedflow.project.arguments import check_arguments
from fedflow.stages.experiment import Experiment
from flows.central import central
from flows.federate import federate
from flows.pipeline import pipeline
from flows.procedure import procedure
from flows.sweep import sweep
from flows.tune import tune

RUN = {"partition": "skewed", "method": "fedavg"}


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the current folder that nothing may be added to."""
    monkeypatch.chdir(make_project(tmp_path))
    yield tmp_path
    assert [file.name for file in tmp_path.iterdir()] == ["params.yaml"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        *(({"seed": x}, f"seed: {x!r} .*a whole number >= 0") for x in ("x", "0", -1, 1.5, None, True)),
        ({"partition": ["skewed"]}, r"partition: \['skewed'\] .*expected text"),
        ({"method": {"name": "fedavg"}}, "method: .*expected text"),
        ({"settings": "run.rounds=5"}, "settings: 'run.rounds=5' .*a list, each item text"),
        ({"settings": [5]}, "settings: 5 .*a list, each item text"),
        ({"root": None}, "root: None .*expected text"),
        *(({name: 5}, f"{name}: 5 .*expected text") for name in ("root", "out", "sweep")),
        *(({name: ""}, f"{name}: '' .*text that is not empty") for name in ("root", "out", "sweep")),
        *(
            ({name: bad}, f"{name}: .* is not accepted; expected text without control characters$")
            for name in ("partition", "method", "root", "out", "sweep")
            for bad in ("a\0b", "a\nb", "a\x1bb", "a\ud800b")
        ),
        ({"settings": ["run.rounds=5\0"]}, "settings: .*text without control characters"),
        *(({name: "x" * 256}, f"{name}: 'xxx.* 255 in each part") for name in ("root", "out")),
        ({"out": "abc/" * 1024 + "d"}, "out: 'abc/.* a path of up to 4096 bytes"),
        ({"sweep": "x" * 129}, "sweep: 'xxx.* a name of letters, .*128 at most"),
        ({"sweep": ".."}, r"sweep: '\.\.' .*does not start with a dot"),
        ({"sweep": "a/b"}, "sweep: 'a/b' .*a name of letters"),
        ({"sweep": ".a"}, "sweep: '.a' .*does not start with a dot"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_run_with_a_bad_parameter_is_refused(given, says):
    with one_line_error(f"^{says}", BadInput):
        federate.fn(**RUN | given)


@pytest.mark.parametrize(
    ("flow", "given", "says"),
    [
        (sweep.fn, {"partitions": "skewed"}, "partitions: 'skewed' .*a list"),
        (sweep.fn, {"seeds": [0, -1]}, "seeds: -1 .*each item a whole number >= 0"),
        (sweep.fn, {"seeds": [0, 1, 0]}, "seeds: 0 .*every item once"),
        (sweep.fn, {"methods": ["fedavg", "fedavg"]}, "methods: 'fedavg' .*every item once"),
        (sweep.fn, {"partitions": ["skewed", "SKEWED"]}, "partitions: 'SKEWED' .*more than capitals"),
        (sweep.fn, {"methods": [5]}, "methods: 5 .*a list, each item text"),
        (sweep.fn, {"methods": ["fedavg", "nope"]}, "grid.methods: 'nope'"),
        (sweep.fn, {"name": "a b"}, "name: 'a b' .*a name of letters"),
        (sweep.fn, {"settings": "run.rounds=5"}, "settings: .*a list"),
        *((flow.fn, {"name": ["a"]}, r"name: \['a'\] .*expected text") for flow in (central, procedure)),
        *((flow.fn, {"name": "a\0b"}, "name: .*without control characters") for flow in (central, procedure)),
        (sweep.fn, {"methods": ["a\0b"]}, "methods: .*without control characters"),
        (sweep.fn, {"root": 5}, "root: 5 "),
        (pipeline.fn, {"settings": [5]}, "settings: 5 .*a list, each item text"),
        (pipeline.fn, {"root": None}, "root: None "),
        (tune.fn, {"partition": 5}, "partition: 5 "),
        (tune.fn, {"partition": "skewed", "methods": "fedavg"}, "methods: 'fedavg' .*a list"),
        (tune.fn, {"partition": "skewed", "write": "no"}, "write: 'no' .*true or false"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_other_flows_check_their_parameters_too(flow, given, says):
    with pytest.raises(BadInput, match=f"^{says}"):
        flow(**given)


def test_the_parameters_are_checked_here_and_not_by_prefect():
    """Prefect turns "0" into 0, and its own refusal is no line that a user can act on."""
    assert not any(flow.should_validate_parameters for flow in (federate, sweep, pipeline, tune))


def test_an_experiment_takes_numpy_seeds_and_no_other_kind():
    params = load_params()
    assert type(Experiment(params, "skewed", "fedavg", np.int64(3)).seed) is int
    for seed in ("0", -1, 1.5, None, True, np.float64(1)):
        with pytest.raises(BadInput, match=r"^seed: "):
            Experiment(params, "skewed", "fedavg", seed)


def test_the_folder_of_a_try_of_tuning_is_accepted(root: Path) -> None:
    for folder in ("tuning/skewed/fedavg/1000", "elsewhere"):
        check_arguments(out=folder, root=str(root))
    for folder in ("results/skewed", ".git", "mlruns"):
        with one_line_error("^out: .* a folder outside data, ", BadInput):
            check_arguments(out=folder, root=str(root))
