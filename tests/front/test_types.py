"""The types of ``import fedflow``: mypy knows names and keywords by the stub, and editors complete them."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import jedi
import pytest

import fedflow
from fedflow.front.names import STUB
from fedflow.front.runner import Fields, run
from fedflow.settings import Settings
from fedflow.simulation.settings import RunSettings

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
ff.run(partition=ff.dirichlet(alpha=0.1, clients=9), timing={"work": "step"}, reports=["server"])
ff.Training(lr=0.1, curriculum=ff.Curriculum(order="anti"))


@ff.register_method("mine", "Mine")
class Mine(ff.FedProx, ff.Cyclic):
    share: float = ff.option(0.5, "share of the way", ge=0)

    def local(self, client: ff.Client) -> ff.Update:
        return client.update(model=client.fit(start=client.received["model"]))


Mine(share=0.1, mu=0.2)
ff.heterogeneity.proximity([])
"""
WRONG = {
    "ff.Ditto(lambda_=1.0)": 'Unexpected keyword argument "lambda_" for "Ditto"',
    'ff.Ditto(lam="1")': 'Argument "lam" to "Ditto" has incompatible type "str"; expected "float"',
    "ff.dirichlet(alph=0.1)": 'Unexpected keyword argument "alph" for "dirichlet"',
    "ff.dirichlet(holdout='all')": 'Argument "holdout" to "dirichlet" has incompatible type "str"',
    "ff.Training(lrr=0.1)": 'Unexpected keyword argument "lrr" for "LocalTraining"',
    "ff.run(rouds=3)": 'Unexpected keyword argument "rouds" for overloaded function "run"',
    "ff.run(sampling='all')": 'No overload variant of "run" matches argument type "str"',
    "ff.Dito()": 'Module has no attribute "Dito"',
    "ff.run().model('a')": 'Argument 1 to "model" of "Result" has incompatible type "str"',
}
# Without the types of large libraries, which take half a minute to read; so not all of fedflow's fit.
CONFIG = """
[mypy]
ignore_missing_imports = True
[mypy-torch.*,torchvision.*,pandas.*,matplotlib.*,scipy.*,numpy.*,mlflow.*,IPython.*,sqlalchemy.*,pydantic.*]
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
        path = {"MYPYPATH": str(STUB.parents[1]), "PATH": ""}
        return subprocess.run(
            command, check=False, cwd=folder, env=path, capture_output=True, text=True
        ).stdout

    return check


def test_the_package_says_that_it_is_typed() -> None:
    assert (STUB.parent / "py.typed").is_file()


@pytest.mark.full
def test_mypy_accepts_what_is_right(checked: Checked) -> None:
    assert checked(RIGHT).startswith("Success")


def test_mypy_refuses_what_is_wrong(checked: Checked) -> None:
    said = checked("import fedflow as ff\n" + "\n".join(WRONG)).splitlines()
    for line, words in enumerate(WRONG.values(), start=2):
        assert any(f"program.py:{line}: " in one and words in one for one in said), (words, said)


def static(code: str) -> set[str]:
    """What an editor completes at the end of the code."""
    home = str(STUB.parents[1])
    project = jedi.Project(home, sys_path=[home, *sys.path])
    return {one.name for one in jedi.Script(f"import fedflow as ff\n{code}", project=project).complete()}


def live(code: str) -> set[str]:
    """What a notebook completes."""
    return {one.name for one in jedi.Interpreter(code, [{"ff": fedflow}]).complete()}


@pytest.mark.parametrize("complete", [static, live])
def test_editors_and_notebooks_complete_names_and_keywords(complete: Callable[[str], set[str]]) -> None:
    assert {"FedProx", "FedAvg"} <= complete("ff.Fed")
    assert {"alpha="} <= complete("ff.dirichlet(al") and {"lr_decay="} <= complete("ff.Training(lr_")
    assert {"rounds="} <= complete("ff.run(rou") and {"register_method"} <= complete("ff.register_")


def test_notebooks_complete_keywords_of_methods_and_shared_fields_and_show_pages() -> None:
    assert {"mu="} <= live("ff.FedProx(mu") and {"weighting="} <= live("ff.FedProx(w")
    assert {"clients="} <= live("ff.dirichlet(cl") and {"evaluate_every="} <= live("ff.run(eval")
    page = jedi.Interpreter("ff.FedProx", [{"ff": fedflow}]).help(1, 5)[0].docstring()
    assert "proximal term" in page and "mu: weight of the proximal term" in page


def test_the_keywords_of_run_for_type_checkers_are_the_fields_of_its_settings() -> None:
    given, types = get_type_hints(Fields), get_type_hints(RunSettings)
    explicit = set(get_type_hints(run)) - {"settings", "return"}
    assert list(given) == [field.name for field in fields(RunSettings) if field.name not in explicit]
    choices = {field.name: tuple(field.metadata["choices"]) for field in fields(RunSettings)}
    for name, hint in given.items():
        assert widened(types[name], choices[name]) == plain(hint), name


def widened(hint: Any, choices: tuple[str, ...]) -> Any:
    """A type of a field, with its choices, as `plain` writes what is accepted for it."""
    if get_origin(hint) is list:
        return ("sequence", widened(get_args(hint)[0], choices))
    if args := get_args(hint):
        return frozenset().union(*(widened(one, choices) for one in args))
    if isinstance(hint, type) and issubclass(hint, Settings):
        return frozenset({hint.__name__, "Mapping"})
    return frozenset(choices or {hint.__name__})


def plain(hint: Any) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return frozenset(args)
    if args and origin.__name__ == "Sequence":
        return ("sequence", plain(args[0]))
    if args and origin.__name__ != "Mapping":
        return frozenset().union(*map(plain, args))
    return frozenset({(origin or hint).__name__})
