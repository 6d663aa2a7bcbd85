"""``new``: a package with a method or a partition scheme of the user, which fedflow finds once installed."""

import keyword
import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedflow.cli.printing import print_line
from fedflow.errors import BadInput, FedflowError
from fedflow.project.templates import rendered
from fedflow.report.citing import PLACEHOLDER

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedflow-{name}"
version = "0.1.0"
description = "The {kind} {label} for fedflow"
requires-python = ">=3.11"
# And fedflow, from its repository: on package indexes, that name belongs to another project.
dependencies = []

[project.entry-points."fedflow.plugins"]
{name} = "fedflow_{name}"

[tool.hatch.build.targets.wheel]
only-include = ["fedflow_{name}.py"]
"""

METHOD = '''\
"""{label}: clients stay near the model that they receive.

Source: {authors}, "{title}", 2026.

Client: minimize F_k(w) + strength/2 ||w - w_t||^2 by SGD from w_t. Server: as FedAvg.
*Reduces to* FedAvg when strength = 0.
*State*: as FedAvg. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model.
"""

import fedflow as ff
from torch import Tensor


@ff.register_method("{name}", "{label}")
class {label}(ff.FedAvg):
    strength: float = ff.option(0.1, "weight of the distance to the received model", ge=0)

    def local(self, client: ff.Client) -> ff.Update:
        start = client.received["model"]

        def loss(w: Tensor, batch: ff.Batch) -> Tensor:
            return client.loss(w, batch) + self.strength / 2 * (w - start).square().sum()

        return client.update(model=client.fit(loss, start=start), weight=self.weight(client))
'''

METHOD_TEST = """\
import fedflow as ff
import torch
from fedflow_{name} import {label}

SETTINGS = {{"rounds": 2, "training": {{"batch_size": 32}}, "progress": False}}


def models(method: ff.Method) -> torch.Tensor:
    run = ff.run("digits", ff.dirichlet(alpha=0.5, clients=4), method, **SETTINGS)
    return torch.cat([w.flatten() for w in run.model().parameters()])


def test_its_neutral_value_is_fedavg_to_rounding() -> None:
    assert torch.allclose(models({label}(strength=0.0)), models(ff.FedAvg()), atol=1e-6)


def test_a_seed_gives_the_same_model_twice() -> None:
    assert torch.equal(models({label}()), models({label}()))
"""

SCHEME = '''\
"""{label}: clients get runs of the samples sorted by label.

Order of sampling: none; samples are sorted by label (stable) and cut into N runs of equal size, up to one.
Source: {authors}, 2026.
"""

import fedflow as ff
import numpy as np


@ff.register_scheme("{name}")
class {label}(ff.Scheme):
    descending: bool = ff.option(False, "begin with the largest label")

    def split(self, samples: ff.Samples, clients: int, rng: np.random.Generator) -> ff.Split:
        order = np.argsort(samples.labels, kind="stable")
        parts = np.array_split(order[::-1] if self.descending else order, clients)
        return ff.Split([np.sort(part) for part in parts])
'''

SCHEME_TEST = """\
import fedflow as ff
import numpy as np
from fedflow_{name} import {label}


def test_every_sample_is_used_once() -> None:
    parts = {label}().split(ff.Samples(np.arange(10) % 3), 4, np.random.default_rng(0)).train
    assert sorted(np.concatenate(parts)) == list(range(10))
"""

TRIAL = """\
# In this folder: fedflow sweep && fedflow report
# To tune learning rates first: fedflow tune --partition skewed
data:
{data}
models: {{{name}: {model}}}
partitions:
  skewed: {{dataset: {name}, scheme: dirichlet, alpha: 0.1, clients: 10, min_size: 10}}
training: {{epochs: 1, batch_size: 32, lr: 0.1}}
run: {{rounds: 20, participation: 0.5, evaluate_every: 2}}
tuning: {{grid: {{training.lr: [0.03, 0.1, 0.3]}}}}
grid: {{datasets: [{name}], partitions: [skewed], methods: [local, fedavg, ditto], seeds: [0, 1, 2]}}
engine: {{executor: inline}}
"""

DATASET = """\
import numpy as np

# Replace these with your samples: images (uint8, n x height x width [x channels]) or rows of features.
rng = np.random.default_rng(0)
centers = rng.normal(size=(5, 16))


def samples(n: int) -> tuple[np.ndarray, np.ndarray]:
    y = rng.integers(0, 5, n)
    return (centers[y] + rng.normal(size=(n, 16))).astype(np.float32), y


x_train, y_train = samples(2000)
x_test, y_test = samples(500)
np.savez("{name}.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
"""

TEMPLATES = {"method": (METHOD, METHOD_TEST), "scheme": (SCHEME, SCHEME_TEST)}
MLP = "{name: mlp, options: {hidden: [32]}}"


def new(
    kind: Annotated[Literal["method", "scheme", "dataset", "trial"], typer.Argument(help="What to create.")],
    name: Annotated[str, typer.Argument(help="Its name in params.yaml, such as halfway.")],
    root: Annotated[Path, typer.Option(help="Folder in which to create it.")] = Path(),
) -> None:
    """Create a package with your own method or partition scheme, a data set, or a small trial.

    A package has code that runs, a test and pyproject.toml. Example: `fedflow new method halfway`, then
    `pip install -e fedflow-halfway`: params.yaml, `fedflow methods`, MLflow and the report then know it. A
    trial is a folder with a params.yaml that runs as it is; a dataset is a trial on your own samples, with
    the script that writes them. docs/adding.md explains the hooks.
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise BadInput("name", name, "lower-case letters, digits and _, beginning with a letter")
    package = kind in TEMPLATES
    folder = root / (f"fedflow-{name}" if package else name)
    about = {"name": name, "kind": kind, "label": name.title().replace("_", "")}
    about |= dict(zip(("authors", "title"), PLACEHOLDER))
    if package:
        code, test = TEMPLATES[kind]
        files = {"pyproject.toml": PROJECT, f"fedflow_{name}.py": code, f"test_{name}.py": test}
        following = f"pip install -e {folder}, then pytest {folder}"
    else:
        files = {"params.yaml": TRIAL, ".gitignore": rendered(".gitignore")}
        following = "fedflow sweep && fedflow report"
        about |= {"model": MLP, "data": "  digits: {source: digits}", "name": "digits"}
    if kind == "dataset":
        files[f"make_{name}.py"] = DATASET
        about |= {"data": f"  {name}: {{source: npz, path: {name}.npz}}", "name": name}
        following = f"python make_{name}.py && {following}"
    following = following if package else f"cd {folder} && {following}"
    if folder.exists():
        raise FedflowError(f"{folder} exists; choose another name, or delete it")
    try:
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text.format(**about))
    except OSError as error:
        raise FedflowError(f"cannot write {folder}: {error.strerror or error}") from error
    for file in files:
        print_line(folder / file)
    print_line(f"next: {following}")
