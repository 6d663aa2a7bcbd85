"""Calls of `fedflow.run` that are refused: one line names the argument and what is accepted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calls import SMALL, own, two_layers
from command import one_line_error
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fedflow as ff
from fedflow.errors import BadInput, FedflowError, RoundFailed
from fedflow.local.extensions.extension import REGISTERED
from fedflow.simulation.updates import STEPS


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ff.dirichlet(0.1, 10), "^fedflow.dirichlet: 0.1, 10 .* alpha=0.1, clients=10$"),
        (lambda: ff.dirichlet(0.1, clients=10), "^fedflow.dirichlet: 0.1 .* alpha=0.1$"),
        (lambda: ff.dirichlet(10), "^fedflow.dirichlet: 10 .* clients=10$"),
        (lambda: ff.iid(10), "^fedflow.iid: 10 .* clients=10$"),
        (lambda: ff.scheme("iid", dataset="cifar10"), "^partition.dataset: 'cifar10' .* no dataset, as"),
    ],
)
def test_values_of_a_scheme_have_names(call: Any, match: str) -> None:
    with one_line_error(match, BadInput):
        call()


def linear_with(hits: Any) -> nn.Module:
    class Counting(nn.Linear):
        def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
            return hits(outputs, y)

    return Counting(5, 3)


@pytest.mark.parametrize(
    ("hits", "match"),
    [
        (lambda outputs, y: (outputs.argmax(1) == y).float().mean(), r"of \[\] for 2 samples"),
        (lambda outputs, y: 7 * (outputs.argmax(1) == y), "of 7 "),
        (lambda outputs, y: outputs.argmax(1) / 0 * y, "of (nan|inf) "),
        (lambda outputs, y: y.missing, "that raises AttributeError"),
    ],
)
def test_hits_of_a_network_are_shares(hits: Any, match: str) -> None:
    with one_line_error(rf"^model: hits\(outputs, y\) {match}.* a number from 0 to 1 per sample", BadInput):
        ff.run(own(), ff.iid(clients=3), model=linear_with(hits), **SMALL)
    top = linear_with(lambda outputs, y: (outputs.topk(2).indices == y[:, None]).any(1))
    assert ff.run(own(), ff.iid(clients=3), model=top, **SMALL).metrics["global_accuracy"] <= 1


def test_a_network_that_cannot_be_made_is_named() -> None:
    def broken() -> nn.Module:
        raise RuntimeError("no weights\nhere")

    for network, match in {
        nn.Linear: r"^model: Linear is not accepted; expected an object such as Linear\(...\), .* missing 2",
        broken: r"^model: broken .* a function without arguments .*\(RuntimeError: no weights\)",
    }.items():
        with one_line_error(match, BadInput):
            ff.run(own(), ff.iid(clients=3), model=network, **SMALL)
    masked = two_layers()
    masked[0].weight.register_hook(lambda g: g * 0)
    with one_line_error("^model.0.weight: a hook", BadInput):
        ff.run(own(), ff.iid(clients=3), model=masked, **SMALL)


def test_a_mistake_in_a_method_in_development_ends_its_first_round() -> None:
    class Unfinished(ff.Method):
        def local(self, client: ff.Client) -> ff.Update:
            return ff.Update({"model": client.fit(start=client.message["model"])})

    class Wrong(ff.FedAvg):
        def local(self, client: ff.Client) -> ff.Update:
            return client.nothing

    class New(Unfinished):
        aggregate = local = Wrong.local

    with one_line_error("method: Unfinished .* a class that defines aggregate$", BadInput):
        ff.run(own(), ff.iid(clients=3), Unfinished, **SMALL)
    with one_line_error(
        "method: Lent with serves = 'persnal' .* one of global, cluster, level, pers", BadInput
    ):
        ff.run(own(), ff.iid(clients=3), type("Lent", (ff.FedAvg,), {"serves": "persnal"}), **SMALL)
    words = (
        r"^round 1: every client failed \(client 0: AttributeError: .*'nothing' "
        r"\(test_refused_calls.py, line \d+\); and 2 more\)$"
    )
    for method, name in ((Wrong(), "Wrong"), (New, "New")):
        warned = pytest.warns(UserWarning, match=f"^{name}: round 1: every client failed")
        with warned, one_line_error(words, RoundFailed):
            ff.run(own(), ff.iid(clients=3), method, **SMALL)


class Unfit(nn.Linear):
    """A network that fails in training only, in batches of 10."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs.nothing if len(y) == 10 else nn.functional.cross_entropy(outputs, y, reduction="none")


class NoLoss(ff.Extension):
    def loss(self, host: Any, inner: Any, w: Tensor, batch: Any) -> Any:
        return None


class NoStep(ff.UpdateStep):
    def accepts(self, update: Any, received: Any) -> Tensor:
        return update.nothing


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_mistake_in_an_extension_or_a_network_ends_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTERED, "no_loss", NoLoss)
    monkeypatch.setitem(STEPS, "no_step", NoStep)
    with_extension = {"training": {"extensions": {"no_loss": {}}}}
    with_step = {"updates": [{"step": "no_step"}]}
    diverged = {"training": {"lr": 1e38}, "rounds": 1}
    for given in (
        {"model": Unfit(5, 3)},
        {"model": lambda: Unfit(5, 3)},
        with_extension,
        with_step,
        diverged,
    ):
        with one_line_error("^round 1: every client failed", RoundFailed):
            ff.run(own(), ff.iid(clients=3), **SMALL | given)
    run = ff.run(own(), ff.iid(clients=3), **SMALL | diverged | {"rounds": 2, "participation": 0.3})
    assert run.metrics["failed_clients"] == 2  # of fedflow's own parts


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"method": "dito"}, r"method.name: 'dito' .*\(did you mean 'ditto'\?\); expected one of .*ditto"),
        ({"method": 3}, "method: 3 .* a name such as 'ditto', or an object"),
        ({"method": "fedvag"}, r"method.name: 'fedvag' .*\(did you mean 'fedavg'\?\)"),
        ({"seeds": 3}, r"seeds: 3 .* a list of whole numbers, such as range\(3\)"),
        ({"seeds": []}, r"seeds: \[\] .* a list of whole numbers"),
        ({"seeds": 2.0}, r"seeds: 2.0 .* a list of whole numbers"),
        ({"record": True}, "record: True .* a folder"),
        ({"record": ""}, "record: '' .* a folder"),
        ({"method": {"method": "ditto", "lamb": 1}}, "lamb: .*did you mean 'lam'.* one of lam, "),
        ({"data": "digit"}, "data.source: .*did you mean 'digits'.* one of "),
        ({"data": 3}, "data: int .* the name of a source, a mapping, or fedflow.dataset"),
        ({"partition": "iid"}, "partition: 'iid' .* a scheme such as fedflow.dirichlet"),
        ({"partition": []}, "partition: list .* a list of row numbers per client"),
        ({"partition": [[0], []]}, r"partition\[1\]: an empty list .* one row number or more"),
        ({"partition": [[0], None]}, r"partition\[1\]: a NoneType .* row numbers of training samples"),
        ({"partition": [[0], [[1, 2]]]}, r"partition\[1\]: a list .* row numbers"),
        ({"partition": [[0], ["a"]]}, r"partition\[1\]: a list .* row numbers"),
        ({"partition": [[0], [-1, 7]]}, r"partition\[1\]: \[-1\] .* whole numbers from 0 to 59"),
        ({"partition": [[0], [1, 2, 1]]}, r"partition\[1\]: 1 .* every training sample at most once"),
        (
            {"partition": [np.arange(50) < 9, np.arange(60) >= 9]},
            r"partition\[0\]: a mask of 50 .* of the 60 ",
        ),
        ({"partition": [np.arange(60) < 9, np.arange(60) < 0]}, r"partition\[1\]: an empty list"),
        ({"partition": [np.arange(60) < 9, np.arange(60) > 7]}, "partition: 8 .* clients 0 and 1 both"),
        ({"partition": [0, 1, 0]}, r"partition: list .* \[np.flatnonzero\(owner == k\) for k"),
        (
            {"partition": {0: [1], 1: [60]}},
            r"partition.rows: row 60 of client 1 .* training samples, 0 to 59",
        ),
        ({"partition": {0: [1], 1: []}}, r"partition.rows: client 1 without training rows"),
        ({"partition": {"alpha": 0.1}}, r"partition: a dict without `scheme` .* rows by client"),
        ({"model": nn.Linear}, r"model: Linear .* an object such as Linear\(\.\.\.\)"),
        (
            {"model": {"weight": torch.ones(9, 9)}},
            "model: a dict without `name` .* the name of an architecture",
        ),
        ({"model": {"name": "mlp", "options": None}}, "model.options: None .* a mapping"),
        ({"model": {"name": 3}}, "model.name: 3 .* text"),
        ({"model": {"name": "mlp", "start": 3}}, "model.start: 3 .* text"),
        ({"partition": {"scheme": "given", "rows": []}}, "partition.rows: no client .* one client or more"),
        ({"model": [two_layers()]}, "model: a list .* a torch.nn.Module, or a function that makes one"),
        (
            {"data": {"x": np.ones((6, 2)), "y": [0, 1] * 3}},
            "data: a dict without `source` .* fedflow.dataset",
        ),
        ({"model": lambda d: nn.Linear(d, 3)}, "model: <lambda> .* a function without arguments"),
        ({"data": (np.ones((6, 2)), [0, 1] * 3)}, r"data: tuple .*: fedflow.dataset\(x, y, x_test, y_test\)"),
        ({"data": TensorDataset(torch.ones(6, 2))}, r"data: TensorDataset .* fedflow.dataset\(train, test\)"),
        (
            {"data": DataLoader(TensorDataset(torch.ones(6, 2)))},
            r"data: DataLoader .* fedflow.dataset\(train, test\)",
        ),
        ({"data": "here/table.csv"}, 'data: .*: fedflow.run.{"source": "table", "path": "here/table.csv"'),
        ({"data": Path("a.npz")}, 'data: PosixPath .*: fedflow.run.{"source": "npz", "path": "a.npz"'),
        ({"partition": [[0], [60]]}, r"partition\[1\]: \[60\] .* whole numbers from 0 to 59"),
        ({"partition": [[0], [0.5]]}, r"partition\[1\]: \[0.5\] .* whole numbers"),
        ({"partition": [[0, 1], [1]]}, "partition: 1 .* every training sample at most once; clients 0 and 1"),
        ({"model": "lenet"}, "model.name: 'lenet' .*did you mean 'lenet5'.* one of "),
        ({"model": "lenet5"}, "model.name: 'lenet5' .* that fit"),
        ({"model": {"hidden": [3]}}, "model: .* a mapping with the name of an architecture"),
        ({"model": lambda: 3}, r"model: 'int' .* returns a torch.nn.Module"),
        ({"rounds": 0}, "run.rounds: 0 .* a whole number >= 1"),
        ({"rouds": 3}, r"fedflow.run: 'rouds' .* \(did you mean 'rounds'\?\)"),
        ({"lr": 0.1}, "lr: 0.1 .* within training="),
        ({"learning_rate": 0.1}, r"learning_rate: 0.1 .*did you mean 'lr'.* within training={'lr': ...}"),
        ({"optimizer": "adam"}, "optimizer: 'adam' .* within training="),
        ({"optimiser": "adam"}, "optimiser: .*did you mean 'optimizer'.* within training={'optimizer': ...}"),
        ({"training": {"optimiser": "adam"}}, "^training.optimiser: .*did you mean 'optimizer'"),
        ({"method": {"method": "fesem", "centres": 2}}, "^method.centres: .*did you mean 'centers'"),
        ({"clients": 10}, r"clients: 10 .* within the partition, such as fedflow.dirichlet\(clients=...\)"),
        ({"num_rounds": 10}, "did you mean 'rounds'"),
        ({"fraction_fit": 1}, "did you mean 'participation'"),
        ({"strategy": "fedavg"}, "did you mean 'method'"),
        ({"method": "FedAvgX"}, "did you mean 'fedavg'.*`fedflow methods` lists them"),
        ({"training": []}, r"training: \[\] .* a mapping"),
        ({"model": ""}, "model.name: '' "),
        ({"training": {"lrr": 1}}, "training.lrr: .*did you mean 'lr'"),
        ({"min_cohort": 3, "participation": 0.7}, "run.min_cohort: 3 .* at most 2, the cohort at partic"),
        ({"participation": 2}, "run.participation: 2.0 .* a number > 0 and <= 1"),
        ({"seed": -1}, "seed: -1 .* a whole number >= 0"),
        ({"seed": "a"}, "seed: 'a' .* a whole number >= 0"),
        ({"device": "gpu"}, "device: 'gpu' .* one of auto, cpu, cuda"),
        ({"compile": True}, "compile: True .* one of auto, always, never"),
        ({"checkpoint_every": 2}, "^checkpoint_every: 2 .* no value without record="),
        ({"progress": "no"}, "progress: 'no' .* True or False"),
        (
            {"partition": ff.iid(clients=3, seed=5), "redraw": "both"},
            "partition.seed: 5 .* 0 with redraw='both'",
        ),
        (
            {"partition": {"a": range(9), "b": range(9, 60)}, "seeds": [0, 1], "redraw": "division"},
            "redraw: 'division' .* run, as no seed changes this division",
        ),
        ({"partition": {"a": [True] * 9, "b": range(9, 60)}}, "partition: a mask of 9 .* of the 60 training"),
    ],
)
def test_errors_name_what_is_accepted(given: dict[str, Any], match: str) -> None:
    with one_line_error(match, BadInput):
        ff.run(**{"data": own(), "partition": ff.iid(clients=3), **SMALL} | given)


def test_real_targets_keep_their_differences() -> None:
    y = 1.7e9 + np.arange(12.0)
    with one_line_error(
        "y: targets from 1700000000 to 1700000011 differ too little for float32", FedflowError
    ):
        ff.dataset(np.zeros((12, 2), "float32"), y, np.zeros((12, 2), "float32"), y, loss="mse")
    wide, x = np.array([1.0, 2e5, 3, 4e4] * 3), np.arange(24, dtype="float32").reshape(12, 2)
    ff.dataset(x, wide, x[:2], np.array([100000.001, 100000.002]), loss="mse")


def test_rows_of_some_clients_cannot_be_mappings() -> None:
    with one_line_error("partition.rows: train of client 1 holds no list", FedflowError):
        ff.run(own(), [[0], {"train": [1], "test": [2]}], **SMALL)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("fedhen", "exits"),
        ("noside", "exits"),
        ("decouple", "exits"),
        ("heterofl", "width and the option exits"),
    ],
)
def test_a_network_without_levels_is_refused_before_anything_is_compiled(name: str, option: str) -> None:
    match = f"^model.name: mlp .* a network with the option {option}, which {name} changes"
    with one_line_error(match, BadInput):
        ff.run(own(), ff.iid(clients=3), name, **SMALL | {"compile": "always"})


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"method": "fedhen", "model": "mlp"}, "model.name: mlp .* the option exits, which fedhen changes"),
        ({"method": ff.CFL(warm_up=9), "rounds": 9}, "method.warm_up: 9 .*less than 9, the rounds"),
        ({"method": "flis_dc"}, "partition.public: 0 "),
        ({"method": "superfed"}, "partition.selection: 0 .*a share > 0, as superfed needs held-out samples"),
    ],
)
def test_settings_are_checked_before_data_are_downloaded(
    given: dict[str, Any], match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFLOW_DATA", str(tmp_path / "none"))
    with one_line_error(match, BadInput):
        ff.run({"source": "cifar10", "seed": 99}, ff.iid(clients=3), **SMALL | given)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"x": np.zeros((59, 5), np.float32)}, r"x: \(59, 5\) .* n = 60 > 0 targets"),
        ({"x_test": np.zeros((30, 4), np.float32)}, r"x_test: \(4,\) .* the shape \(5,\)"),
        ({"x": np.full((60, 5), np.nan, np.float32)}, "x: nan .* finite numbers"),
        ({"x": [["a"] * 5] * 60}, "x: 'list' .* an array or tensor of numbers"),
        ({"x": np.ones((60, 5), object)}, r"x: 'ndarray' .* as in x.astype\('float32'\); it holds object"),
        ({"x": np.ones((60, 5), bool)}, r"x: bool \[60, 5\] .* x.astype\('float32'\)"),
        ({"x": np.ones((60, 5), complex)}, "x: 'ndarray' .* it holds complex128"),
        ({"x": np.ones((60, 5))}, "x_test: float32 .* the type of x, float64"),
        ({"x": np.full((60, 5), 1e300), "x_test": np.ones((30, 5))}, "x: 1e.300 .* finite numbers"),
        (
            {"x": np.ma.masked_equal(np.arange(300.0).reshape(60, 5), 3)},
            "x: a masked array .* as in x.filled",
        ),
        ({"x": np.ones(60), "x_test": np.ones(30)}, r"x: \(60,\) .* of one feature: x\[:, None\]"),
        ({"x": np.ones((60, 5), np.uint8)}, r"x: \(60, 5\) .* a table: x.astype\('float32'\)"),
        ({"x": np.zeros((60, 8, 8), int)}, r"x: int64 \[60, 8, 8\] .* x.astype\('uint8'\)"),
        ({"x": np.zeros((60, 3, 8, 8), np.uint16)}, r"x: uint16 \[60, 3, 8, 8\] .* x.astype\('uint8'\)"),
        ({"x": np.full((60, 5), -1)}, "x: int64 -1 to -1 .* or tokens .n, L. from 0"),
        ({"x": TensorDataset(torch.ones(60, 5))}, "y: a ndarray .* None: x has the targets too"),
        (
            {"x": "here/data.csv"},
            'x: str .*: fedflow.run.{"source": "table", "path": "here/data.csv", "target"',
        ),
        ({"x_test": None}, r"x_test: None .* fedflow.dataset\(x\[:n\], y\[:n\], x\[n:\], y\[n:\]\)"),
        ({"y": np.full(60, 3), "classes": ["a", "b", "c"]}, "y: 3 .* 0 to 2"),
        ({"y": np.full(60, -1)}, "y: -1 .* 0 to 2"),
        ({"y": np.arange(60) % 3 + 1}, "y: 1, 2, 3 .* labels 0 to 2: subtract 1"),
        ({"y": np.arange(60) % 10 + 100}, "y: 100, .* labels 0 to 9: subtract 100"),
        ({"y": np.arange(60) % 3 - 1}, "y: -1, 0, 1 .* labels 0 to 2: add 1"),
        ({"y": np.arange(60) % 2 * 2 - 1}, r"y: -1, 1 .* labels 0 to 1: number them with .*np.unique\(y\)"),
        ({"y": np.arange(60) % 3 * 5}, "y: 0, 5, 10 .* `classes` names labels without training samples"),
        ({"y_test": np.arange(30) % 4}, "y_test: 3 .* labels 0 to 2; `classes` names labels without"),
        ({"y": np.zeros(60, int), "y_test": np.zeros(30, int)}, "y: own, .* all have the label '0', .* two"),
        ({"y": np.zeros(60, int), "classes": ["a", "b", "c"]}, "y: own, .* all have the label 'a', .* two"),
        ({"y": np.full(60, "cat")}, r"y: 'ndarray' .* names = np.unique\(y\)"),
        ({"y": np.zeros(60, "M8[s]")}, "y: 'ndarray' .* it holds datetime64"),
        ({"y": np.arange(60) % 3 * 1.0}, r"y: floats 0, 1, 2 .* y.astype\(int\); real .* y\[:, None\]"),
        ({"y": np.arange(60) % 3 + 1.0}, r"y: floats 1, 2, 3 .* y.astype\(int\); real .* y\[:, None\]"),
        ({"y": np.arange(60) % 2 * 2.0 - 1}, r"y: floats -1, 1 .* y.astype\(int\); real .* y\[:, None\]"),
        ({"y": np.array([0, 1, 2] * 20, object)}, r"y: 'ndarray' .* as in y.astype\(int\)"),
        ({"y": np.where(np.arange(60) == 3, np.nan, 0.5)}, "y: nan .* finite"),
        ({"y": (np.arange(60) % 3)[:, None]}, r"y: int64 \[60, 1\] .* labels \[n\].*: np.ravel\(y\)"),
        ({"y": np.eye(3, dtype=int)[np.arange(60) % 3]}, r"y: one-hot int64 \[60, 3\] .* y.argmax\(1\)"),
        ({"y": np.eye(3)[np.arange(60) % 3]}, r"y: one-hot float64 \[60, 3\] .* y.argmax\(1\)"),
        ({"y": np.ones((60, 3))}, r"y: multi-label float64 \[60, 3\] .* several, with loss=.bce"),
        ({"y": np.full((60, 3), 7)}, r"y: int64 \[60, 3\] .* labels \[n\], or float targets"),
        ({"y": np.linspace(0, 1, 60)}, r"y_test: int64 \[30\] .* targets as y, float64 \[n\]"),
        (
            {"y": np.linspace(0, 1, 120).reshape(60, 2), "y_test": np.linspace(0, 1, 30)},
            r"y_test: float64 \[30\] .* \[n, 2\]",
        ),
        ({"y": 3}, r"x: \(60, 5\) .* n = 0 > 0 targets"),
        ({"classes": "abc"}, "classes: 'abc' .* a list of different names"),
        ({"classes": ["a", "b", "b"]}, "classes: .* a list of different names"),
        ({"x": np.zeros((60, 8, 8, 4), np.uint8)}, r"x: \(60, 8, 8, 4\) .* \[n, C, H, W\] or \[n, H, W, C\]"),
        ({"x": np.zeros((60, 8, 8, 3), np.uint8)}, r"x: \(60, 8, 8, 3\) .* \[n, C, H, W\]"),
    ],
)
def test_arrays_that_do_not_fit(changes: dict[str, Any], match: str) -> None:
    with one_line_error(match, BadInput):
        own(**changes)


def test_channels_last_are_said_to_be_so() -> None:
    x = np.zeros((20, 28, 28, 3), np.float32)
    data = ff.dataset(x, np.arange(20) % 2, x, np.arange(20) % 2)
    for model in (None, "lenet5", "resnet9_bn"):  # the last one would run
        with one_line_error(r"x: \[n, 28, 28, 3\] .* x.transpose\(0, 3, 1, 2\)", BadInput):
            ff.run(data, ff.iid(clients=2), model=model, **SMALL)
    assert ff.run(data, ff.iid(clients=2), model="mlp", **SMALL).metrics["parameters"]


def test_classes_without_training_samples_are_named() -> None:
    data = own(classes=["a", "b", "c", "d"])
    assert data.num_classes == 4 and own(y=np.arange(60) % 2 == 0, y_test=np.arange(30) > 3).num_classes == 2


def test_wrong_keywords_of_methods_and_schemes() -> None:
    with one_line_error(r"method.lamb: .* \(did you mean 'lam'\?\); expected one of ", BadInput):
        ff.Ditto(lamb=1)
    with one_line_error(r"partition.alpa: .* \(did you mean 'alpha'\?\); expected one of ", BadInput):
        ff.dirichlet(alpa=1)
    for name, right in {"fedavg": "FedAvg", "SCAFFOLD": "Scaffold"}.items():
        with pytest.raises(AttributeError, match=f"{name!r} .*did you mean {right!r}"):
            getattr(ff, name)
    with pytest.raises(AttributeError, match=r"'Dito' .*did you mean 'Ditto'.* one of "):
        _ = ff.Dito
