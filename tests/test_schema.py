"""The JSON schema of ``params.yaml`` accepts what `load_params` accepts, and refuses most of the rest."""

import json
from pathlib import Path

import pytest
import yaml
from command import PARAMS, fedflow

from fedflow.config import set_value
from fedflow.config.schema import params_schema

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).parents[1]
FILES = (ROOT / "params.yaml", *ROOT.glob("studies/*/params.yaml"))


@pytest.fixture(scope="module")
def validator():
    return jsonschema.Draft202012Validator(params_schema())


@pytest.mark.full  # six seconds of processor; the tests below fail where the schema cannot be used
def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(params_schema())


@pytest.mark.parametrize("text", [PARAMS, *(file.read_text() for file in FILES)])
def test_files_of_the_project_are_accepted(validator, text):
    assert [error.message for error in validator.iter_errors(yaml.safe_load(text))] == []


def changed(change):
    values = yaml.safe_load((ROOT / "params.yaml").read_text())
    set_value(values, change)
    return values


@pytest.mark.parametrize(
    "change",
    [
        "methods.ditto.training.lr=1e-3",
        "methods.fedavg=null",
        "models.digits=mlp",
        "run.target_accuracy=null",
        "tuned.mnist5k-dir.fedavg.training.lr=0.1",
        "data.digits.normalize={mean: [0.5], std: [0.5]}",
        "data.tables={source: table, path: a.csv, target: y}",
        "methods.aaggff_s.host={name: fedprox, mu: 1e-3}",
        "methods.fedavg={method: fedavg, label: Ours}",
        "methods.mine={method: fedprox, label: Mine, mu: 0.1, training: {lr: 0.1}}",
        "tuned.mnist5k-dir.mine.mu=0.1",
        "methods.mine={method: fedavg, run: {sampling: sweep}}",
        "methods.ditto.run.rounds=3",
        "methods.fedavg={method: null, label: null}",
        "methods.ditto.training.objective={alpha: 0.2}",
        "models.digits={name: mlp, trainable: [layers.last.*]}",
        "models.digits={name: mlp, start: w.safetensors, fresh: [layers.last.*]}",
        "models.digits=mine.models:Net",
    ],
)
def test_other_forms_are_accepted(validator, change):
    assert [error.message for error in validator.iter_errors(changed(change))] == []


@pytest.mark.parametrize(
    "change",
    [
        "run.round=5", "run.rounds=0", "run.rounds=many", "runs={}", "training.lr=0",
        "training.momentum=1", "engine.executor=thread", "data.digits.source=digit",
        "data.digits.dimension=3", "data.digits.padding=1", "models.digits=lenet",
        "models.digits={name: mlp, options: {hiden: [3]}}", "partitions.mnist5k-dir.scheme=dir",
        "partitions.mnist5k-dir.alfa=1", "partitions.mnist5k-dir.groups=2",
        "partitions.mnist5k-dir.alpha=0", "methods.fedavgg={}", "methods.ifca.cluster=2",
        "methods.ifca.clusters=0", "methods.ifca.training.epoch=1",
        "tuned.mnist5k-dir.ifca.cluster=2", "grid.seeds=[-1]", "grid={}",
        "methods.aaggff_s.host={name: ditto}", "methods.aaggff_s.host={name: fedavg, mu: 0.1}",
        "methods.aaggff_d.host={mu: 0.1}", "methods.mine={mu: 0.1}", "methods.mine={method: fedavgg}",
        "methods.mine={method: fedavg, mu: 0.1}", "methods.mine={method: fedprox, training: {epoch: 1}}",
        "methods.fedavg={method: fedprox}", "methods.mine={method: null}",
        "methods.ditto.training.objective={alfa: 0.2}", "training.objective={alpha: 0.2}",
        "methods.ditto.run.rounds=0", "tuned.mnist5k-dir.fedavg.label=Ours",
    ],
)  # fmt: skip
def test_wrong_fields_are_refused(validator, change):
    assert not validator.is_valid(changed(change))


def test_the_command_prints_it_with_meanings_and_defaults(capsys):
    printed = json.loads(fedflow(capsys, "schema").out)
    assert printed == params_schema()
    epochs = printed["properties"]["training"]["properties"]["epochs"]
    assert (epochs["type"], epochs["minimum"]) == ("integer", 1)
    assert epochs["description"] and epochs["default"]
