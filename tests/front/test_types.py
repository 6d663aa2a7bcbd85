"""The types of ``import fedflow``: the stub is that of the code, and mypy knows names and keywords by it."""

import subprocess
import sys
from collections.abc import Callable

import pytest

import fedflow
from fedflow.front.names import known
from fedflow.front.stub import FILE, stub

RIGHT = """
import numpy as np
import fedflow as ff
from torch import nn

run: ff.Result = ff.run("digits", ff.dirichlet(alpha=0.1, clients=20), ff.Ditto(lam=1.0), rounds=5, seed=1)
accuracy: float = run.rounds["local_accuracy"].iloc[-1]
ff.run({"source": "digits"}, {"scheme": "iid", "clients": 3}, {"method": "ditto", "lam": 1}, record="folder")
x, y = np.zeros((4, 2), np.float32), [0, 1, 0, 1]
data = ff.dataset(x, y, x_test=x, y_test=y)
rows = [[0, 1], range(2, 4), np.array([3])]
ff.run(data, rows, ff.FedAvg, model=nn.Linear(2, 2), training=ff.Training(lr=0.1))
ff.run(data, method="fedavg", model=lambda: nn.Linear(2, 2), training={"epochs": 2}, evaluate_every=1)
ff.compare(run, small=[run]).plot("local_accuracy", x="traffic").savefig("curves.pdf")
module: nn.Module = run.model(client=7)
ff.FedProx(mu=0.1, weighting="uniform")
"""
WRONG = {
    "ff.Ditto(lambda_=1.0)": 'Unexpected keyword argument "lambda_" for "Ditto"',
    'ff.Ditto(lam="1")': 'Argument "lam" to "Ditto" has incompatible type "str"; expected "float"',
    'ff.Ditto(weighting="rows")': "expected \"Literal['samples', 'uniform']\"",
    "ff.dirichlet(alph=0.1)": 'Unexpected keyword argument "alph" for "dirichlet"',
    "ff.Training(lrr=0.1)": 'Unexpected keyword argument "lrr" for "Training"',
    "ff.run(rouds=3)": 'Unexpected keyword argument "rouds" for "run"',
    "ff.run(sampling='all')": 'Argument "sampling" to "run" has incompatible type',
    "ff.Dito()": 'Module has no attribute "Dito"',
    "ff.run().model('a')": 'Argument 1 to "model" of "Result" has incompatible type "str"',
}
# Without the types of torch and pandas, which take half a minute to read; so not all of fedflow's fit.
CONFIG = """
[mypy]
ignore_missing_imports = True
[mypy-torch.*,torchvision.*,pandas.*,matplotlib.*,scipy.*,numpy.*]
follow_imports = skip
follow_imports_for_stubs = True
[mypy-fedflow.*]
ignore_errors = True
"""
Checked = Callable[[str], str]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Checked:
    """What mypy says of a program."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "mypy.ini").write_text(CONFIG)

    def check(program: str) -> str:
        (folder / "program.py").write_text(program)
        command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "program.py"]
        path = {"MYPYPATH": str(FILE.parents[1]), "PATH": ""}
        return subprocess.run(
            command, check=False, cwd=folder, env=path, capture_output=True, text=True
        ).stdout

    return check


def test_the_stub_is_that_of_the_code() -> None:
    assert FILE.read_text() == stub(), "write it by: python -m fedflow.front.stub"


def test_the_stub_has_every_name() -> None:
    names = {*known(), *vars(fedflow)["FRONT"], "__version__"}
    text = FILE.read_text()
    for name in names:
        assert any(
            f"{word}{name}{end}" in text
            for word, end in (("\nclass ", "("), ("\ndef ", "("), (" as ", "\n"), ("\n", ":"))
        ), name


def test_the_package_says_that_it_is_typed() -> None:
    assert (FILE.parent / "py.typed").is_file()


@pytest.mark.full
def test_mypy_accepts_what_is_right(checked: Checked) -> None:
    assert checked(RIGHT).startswith("Success")


def test_mypy_refuses_what_is_wrong(checked: Checked) -> None:
    said = checked("import fedflow as ff\n" + "\n".join(WRONG)).splitlines()
    for line, words in enumerate(WRONG.values(), start=2):
        assert any(f"program.py:{line}: " in one and words in one for one in said), (words, said)
