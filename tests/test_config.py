"""``params.yaml``: its defaults, changes from the command line, and errors that name the field."""

import dataclasses
import os
import warnings
from pathlib import Path

import pytest
import yaml
from command import one_line_error

from fedflow.config import check_dvc, load_params, set_value
from fedflow.errors import BadInput
from fedflow.methods import METHODS
from fedflow.partition import SCHEMES
from fedflow.stages.experiment import Experiment, experiments

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "params.yaml"


def load(*changes: str):
    return load_params(SHIPPED, changes)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "params.yaml"


def write_values(file: Path, edit) -> None:
    """The shipped file after ``edit(values)``."""
    values = yaml.safe_load(SHIPPED.read_text())
    edit(values)
    file.write_text(yaml.safe_dump(values))


def test_the_shipped_file_loads_and_its_grid_needs_no_download():
    params = load()
    assert set(params.methods) <= set(METHODS)
    for name in params.partitions:
        assert params.partition(name).scheme in SCHEMES
    assert {params.dataset(name).source for name in params.grid.datasets} <= {"mnist5k", "digits"}


def test_every_cell_of_the_shipped_grid_can_be_built():
    params = load()
    for partition in params.grid.partitions:
        assert params.model(params.partition(partition).dataset).name == "lenet5"
    for name in params.grid.methods:
        method, training = params.method(name)
        assert method.name == name and training == params.training


LEAST = """
data: {digits: {source: digits}}
models: {digits: mlp}
partitions: {p: {dataset: digits, scheme: iid, clients: 2}}
grid: {datasets: [digits], partitions: [p], methods: [fedavg], seeds: [0]}
"""


def test_sections_that_are_left_out_have_defaults(file):
    file.write_text(LEAST)
    params = load_params(file)
    assert params.engine.executor == "auto" and params.run.rounds == 20
    assert params.model("digits").options == {} and params.method("fedavg")[0].as_dict()


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("run.rounds=5", lambda p: p.run.rounds == 5),
        ("training.lr=1e-3", lambda p: p.training.lr == 0.001),
        ("methods.ifca.clusters=4", lambda p: p.method("ifca")[0].clusters == 4),
        ("methods.ifca.training.epochs=7", lambda p: p.method("ifca")[1].epochs == 7),
        ("methods.scaffold=null", lambda p: p.method("scaffold")[0] == METHODS["scaffold"]()),
        ("grid.seeds=[0, 1, 2]", lambda p: p.grid.seeds == [0, 1, 2]),
        ("models.mnist5k=cnn_mnist", lambda p: p.model("mnist5k").name == "cnn_mnist"),
        ("models.mnist5k.name=mlp", lambda p: p.model("mnist5k").name == "mlp"),
        ("run.target_accuracy=null", lambda p: p.run.target_accuracy is None),
        ("engine={executor: dask, address: 'tcp://host:1'}", lambda p: p.engine.address == "tcp://host:1"),
    ],
)
def test_a_change_sets_one_field(change, value):
    assert value(load(change))


def test_a_method_s_own_training_changes_no_other_method_and_later_changes_win():
    params = load("methods.ifca.training.lr=0.4", "methods.ifca.training.lr=0.5")
    assert params.method("ifca")[1].lr == 0.5 and params.method("fedavg")[1] == params.training


VARIANT = "methods.slow={method: fedprox, training: {lr: 0.01}, mu: 0.5}"


def test_an_entry_with_another_name_starts_from_the_entry_of_its_method():
    shared = ("methods.fedprox={mu: 0.1, training: {momentum: 0.9}}", "grid.methods=[fedprox, slow]", VARIANT)
    params = load(*shared)
    method, training = params.method("slow")
    assert (method.name, method.mu, training.lr, training.momentum) == ("fedprox", 0.5, 0.01, 0.9)
    assert params.label("slow") == "FedProx · mu 0.5, lr 0.01" and params.label("fedprox") == "FedProx"
    assert load(VARIANT, "methods.slow.label=Slow").label("slow") == "Slow"
    assert load("methods.same={method: fedprox}").label("same") == "FedProx · same"
    assert params.labels["slow"] == params.label("slow")  # also without `label:`, so that its removal counts

    tuned = "tuned.mnist5k-dir.fedprox={mu: 7, training: {lr: 0.3, momentum: 0}}"
    method, training = load(*shared, tuned).method("slow", "mnist5k-dir")  # its own settings come later
    assert (method.mu, training.lr, training.momentum) == (0.5, 0.01, 0)
    params = load(*shared, tuned, "tuned.mnist5k-dir.slow.mu=3")
    assert params.method("slow", "mnist5k-dir")[0].mu == 3 and params.method("slow")[0].mu == 0.5
    assert load(*shared, tuned, "methods.slow.mu=4").method("slow", "mnist5k-dir")[0].mu == 4

    for whole in ("methods.fedprox={training: {lr: 0.6}}", "methods={fedprox: {training: {lr: 0.6}}}"):
        method, training = load(tuned, whole).method("fedprox", "mnist5k-dir")
        assert (method.mu, training.lr) == (7, 0.6)  # as with methods.fedprox.training={lr: 0.6}


def test_an_entry_may_change_how_its_runs_go():
    easy = "methods.easy={method: fedavg, run: {sampling: easy_first, client_curriculum: {b: 0.5}}}"
    params = load(easy, "methods.faster={method: fedavg, run: {rounds: 3}}", "methods.fedavg.run.rounds=7")
    assert params.run_of("easy").client_curriculum.b == 0.5 and params.run_of("easy").rounds == 7
    assert params.run_of("faster").rounds == 3 and params.run_of("ditto") == params.run
    assert params.label("easy") == "FedAvg · sampling easy_first, client_curriculum b 0.5"


EASY = "run={sampling: easy_first, client_curriculum: {b: 0.5}}"


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        (
            ["run.sampling=easy_first", "methods.x={method: fedavg, run: {sampling: sweep}}"],
            ("sweep", 2, None),
        ),
        ([EASY, "methods.x={method: fedavg, run: {sampling: sweep}}"], ("sweep", 2, None)),
        ([f"methods.x={{method: fedavg, {EASY.replace('=', ': ')}}}"], ("easy_first", 2, None)),
        (["training.epochs=5", "methods.x={method: fedavg, training: {steps: 10}}"], ("uniform", 1, 10)),
        (["training.epochs=5", "methods.x={method: fedavg, training: {steps: null}}"], ("uniform", 5, None)),
    ],
)
def test_an_entry_drops_an_inherited_value_that_its_own_makes_meaningless(changes, settings):
    params = load(*changes)
    run, training = params.run_of("x"), params.method("x")[1]
    assert (run.sampling, training.epochs, training.steps) == settings
    assert (run.client_curriculum is None) is (run.sampling != "easy_first")


def test_so_does_a_change_of_the_file(file):
    text = "run: {sampling: easy_first, client_curriculum: {b: 0.5}}\ntraining: {epochs: 5}\n"
    file.write_text(LEAST + text)
    params = load_params(file, ["run.sampling=uniform", "training.steps=10"])
    assert params.run.client_curriculum is None
    assert (params.training.steps, params.training.epochs) == (10, 1)
    assert params.plain.run.client_curriculum.b == 0.5 and params.plain.training.epochs == 5
    with one_line_error("training.epochs: 5 .*1, its default, with steps"):
        load_params(file, ["training.steps=10", "training.epochs=5"])
    with one_line_error("run.sampling: 'sweep' .*easy_first with run.client_curriculum"):
        load_params(file, ["run.client_curriculum.b=0.2", "run.sampling=sweep"])
    with one_line_error("training.epochs: 5 .*1, its default, with steps"):
        load_params(file, ["methods.x={method: fedavg, training: {steps: 10, epochs: 5}}"])


def test_of_a_nested_setting_only_the_named_fields_change():
    shared = (
        "training.curriculum={a: 0.5, b: 0.1}",
        "methods.anti={method: fedavg, training: {curriculum: {order: anti}}}",
    )
    params = load(*shared, "tuned.mnist5k-dir.anti.training.curriculum.b=0.3")
    found = params.method("anti", "mnist5k-dir")[1].curriculum
    assert (found.order, found.a, found.b) == ("anti", 0.5, 0.3)
    assert params.label("anti") == "FedAvg · curriculum order anti"
    plain = "methods.plain={method: fedavg, training: {curriculum: null}}"
    assert load(*shared, plain).method("plain")[1].curriculum is None
    params = load("methods.on={method: fedavg, training: {curriculum: {}}}")
    assert params.label("on") == "FedAvg · curriculum" and params.method("on")[1].curriculum.a == 0.8


def test_no_method_has_a_hyper_parameter_that_means_something_else_in_an_entry():
    for method in METHODS.values():
        assert not {"method", "label", "training", "run"} & {
            field.name for field in dataclasses.fields(method)
        }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # every section
        ("data.digits.pad=-1", r"^data.digits.pad: -1 .* >= 0"),
        ("data.digits.path=x.npz", r"^data.digits.path: 'x.npz' .*expected null"),
        ("data.digits.source=digit", r"^data.digits.source: 'digit' .*did you mean 'digits'"),
        ("data.digits=5", r"^data.digits: 5 .*a mapping"),
        ("models.digits.name=mpl", r"^models.digits.name: 'mpl' .*did you mean 'mlp'"),
        ("models.digits=lenet", r"^models.digits.name: 'lenet' .*did you mean 'lenet5'"),
        ("models.digits.options.hiden=[3]", r"^models.digits.options.hiden: .*did you mean 'hidden'"),
        ("models.digits.options=7", r"^models.digits.options: 7 .*a mapping"),
        ("partitions.mnist5k-dir.alpha=0", r"^partitions.mnist5k-dir.alpha: 0.0 .*a number > 0"),
        ("partitions.mnist5k-dir.alfa=1", r"^partitions.mnist5k-dir.alfa: .*did you mean 'alpha'"),
        ("partitions.mnist5k-dir.dataset=mnist", r"^partitions.mnist5k-dir.dataset: 'mnist' .*, mnist5k"),
        ("partitions.mnist5k-dir.scheme=dir", r"^partitions.mnist5k-dir.scheme: 'dir'"),
        ("partitions.mnist5k-dir=[]", r"^partitions.mnist5k-dir: \[\] .*a mapping"),
        ("training.lr=-0.1", r"^training.lr: -0.1 .*a number > 0"),
        ("training.momentum=1", r"^training.momentum: 1.0 .*>= 0 and < 1"),
        ("run.participation=1.5", r"^run.participation: 1.5 .*> 0 and <= 1"),
        ("run.participation=0", r"^run.participation: 0.0 .*> 0 and <= 1"),
        ("run.participation=.nan", r"^run.participation: nan .*a number"),
        ("run.rounds=2.5", r"^run.rounds: 2.5 .*a whole number"),
        ("run.fine_tune=1", r"^run.fine_tune: 1 .*true or false"),
        ("methods.ifca.clusters=0", r"^methods.ifca.clusters: 0 .* >= 1"),
        ("methods.ifca.cluster=2", r"^methods.ifca.cluster: .*did you mean 'clusters'"),
        ("methods.ifca=2", r"^methods.ifca: 2 .*a mapping"),
        ("methods.ifca.training=2", r"^methods.ifca.training: 2 .*a mapping"),
        ("methods.ifca.training.lr=-1", r"^methods.ifca.training.lr: -1.0 .*> 0"),
        ("methods.ifca.training.epoch=1", r"^methods.ifca.training.epoch: .*did you mean 'epochs'"),
        ("methods.fedavgg={}", r"^methods: 'fedavgg' .*did you mean 'fedavg'"),
        (
            "methods.fedavg.method=fedprox",
            r"^methods.fedavg.method: 'fedprox' .*expected fedavg, which is reg",
        ),
        ("methods.mine={method: fedavgg}", r"^methods.mine.method: 'fedavgg' .*did you mean 'fedavg'"),
        ("methods.mine={method: fedavg, mu: 1}", r"^methods.mine.mu: "),
        ("methods.mine={method: fedavg, training: {lr: 0}}", r"^methods.mine.training.lr: 0.0 .*> 0"),
        (
            "methods.mine={method: fedavg, run: {round: 1}}",
            r"^methods.mine.run.round: .*did you mean 'rounds'",
        ),
        ("methods.mine={method: fedavg, run: 5}", r"^methods.mine.run: 5 .*a mapping"),
        ("methods.mine={method: fedavg, label: 3}", r"^methods.mine.label: 3 .*text"),
        ('methods."my.own"={method: fedavg}', r"^methods: 'my.own' .*a name of letters, digits and - _$"),
        ("methods.a/b={method: fedavg}", r"^methods: 'a/b' .*a name of letters"),
        ("tuned.mnist5k-dir.ifca.label=IFCA", r"^tuned.mnist5k-dir.ifca.label: 'IFCA' .*under methods.ifca"),
        ("tuning.methods.mine={mu: [1]}", r"^tuning.methods.mine: "),
        ("grid.seeds=[]", r"^grid.seeds: \[\] .*at least one item"),
        ("grid.seeds=[0, -1]", r"^grid.seeds\[1\]: -1 .* >= 0"),
        ("grid.seeds=3", r"^grid.seeds: 3 .*a list"),
        ("grid.seeds=[0, 1, 0]", r"^grid.seeds: 0 .*every item once"),
        ("grid.seeds=[0.5]", r"^grid.seeds\[0\]: 0.5 .*a whole number"),
        ("grid.seeds=[true]", r"^grid.seeds\[0\]: True .*a whole number"),
        ("grid.methods=[ditto, ditto]", r"^grid.methods: 'ditto' .*every item once"),
        ("grid.datasets=[mnist5k, mnist5k]", r"^grid.datasets: 'mnist5k' .*every item once"),
        ("grid.partitions=[mnist5k-dir, mnist5k-dir]", r"^grid.partitions: 'mnist5k-dir' .*every item once"),
        ("grid.procedures=[coreset, coreset]", r"^grid.procedures: 'coreset' .*every item once"),
        ("grid.central=[mnist5k-expert, mnist5k-expert]", r"^grid.central: 'mnist5k-expert' .*every item"),
        ("grid.partitions=[mnist5k-dir, MNIST5k-dir]", r"^grid.partitions: 'MNIST5k-dir' .*than capitals"),
        ("training.lr='1_0'", r"^training.lr: '1_0' .*a number > 0"),
        ('data.digits.path="a\\0b"', r"^--set: .*the character '\\x00'; expected text"),
        ("grid.methods=[1]", r"^grid.methods\[0\]: 1 .*expected text, in quotes: '1'$"),
        ("grid.methods=[ifac]", r"^grid.methods: 'ifac' .*did you mean 'ifca'"),
        ("grid.partitions=[mnist5k]", r"^grid.partitions: 'mnist5k' .*did you mean"),
        ("grid.datasets=[digits]", r"^grid.datasets: .*'mnist5k', which mnist5k-dir divides"),
        (
            "models.mnist5k={name: mlp, trainable: head}",
            r"^models.mnist5k.trainable: 'head' .*a list, each item text",
        ),
        ("engine.executor=thread", r"^engine.executor: 'thread' .*did you mean 'threads'"),
        ("engine.address=tcp://host:1", r"^engine.address: 'tcp://host:1' .*unless executor is dask or ray"),
        ("engine.workers=0", r"^engine.workers: 0 .* >= 1"),
        ("engine.device=gpu", r"^engine.device: 'gpu' .*auto, cpu, cuda"),
        # unknown names
        ("method.mu=1", r"^method: .*did you mean 'methods'"),
        ("run.round=5", r"^run.round: .*did you mean 'rounds'"),
        ("file=params.yaml", r"^file: 'file' .*one of central, data, engine"),
        ("changes=[]", r"^changes: 'changes' .*one of central, data, engine"),
        ("run=5", r"^run: 5 .*a mapping"),
        ("grid={}", r"^grid.datasets: missing; expected a list"),
        # not a change
        ("run.rounds", r"^--set: 'run.rounds' .*section.field=value"),
        ("=5", r"^--set: '=5' "),
        ("run..rounds=5", r"^--set: "),
        ("run.rounds=[1", r"^--set: .*a value in YAML"),
    ],
)
def test_a_bad_value_is_named_as_the_user_wrote_it(change, message):
    with one_line_error(message, BadInput):
        load(change)


def test_methods_may_be_called_by_their_labels():
    changes = (
        "methods.FedProx.mu=0.5",
        "methods.mine={method: LG-FedAvg}",
        "grid.methods=[FedAvg, SCAFFOLD, mine]",
    )
    params, plain = load(*changes), load("methods.fedprox.mu=0.5")
    assert params.grid.methods == ["fedavg", "scaffold", "mine"] and params.registered("mine") == "lg_fedavg"
    assert params.method("fedprox") == plain.method("fedprox") and params.changes[0] == plain.changes[0]
    host = load("methods.aaggff_s.host={name: FedProx}").method("aaggff_s")[0].host
    assert host.name == "fedprox"
    experiment = Experiment(params, "mnist5k-dir", "LG-FedAvg", 0)
    assert experiment.results_folder.parts[-2] == "lg_fedavg"
    assert [run.method for run in experiments(params, Path(), "s", methods=["Local"], seeds=[0])] == [
        "local"
    ] * 2


def test_an_entry_with_a_label_as_its_own_name_keeps_it(file):
    own = {"method": "fedavg", "training": {"lr": 0.5}}
    write_values(file, lambda values: values["methods"].update({"FedAvg": own}))
    params = load_params(file, ["methods.FedAvg.training.lr=0.4"])
    assert params.method("FedAvg")[1].lr == 0.4 and params.method("fedavg")[1].lr == params.training.lr
    assert Experiment(params, "mnist5k-dir", "FedAvg", 0).method == "FedAvg"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("methods={fedavg: {}, FedAvg: {}}", "^methods.FedAvg: .*one entry for the method fedavg"),
        ("tuned.mnist5k-dir={ditto: {}, Ditto: {}}", "^tuned.mnist5k-dir.Ditto: .*one entry for the method"),
        ("grid.methods=[fedavg, FedAvg]", "^grid.methods: 'fedavg' .*every item once"),
        ("methods.FedAvgg={}", "^methods: 'FedAvgg' .*'fedavg'.* or \\d+ more; `fedflow methods` lists"),
        ("models.digits=LeNet", "did you mean 'lenet5'.*`fedflow models` lists them"),
        ("learning_rate=1", "did you mean 'training.lr'"),
        ("run.learning_rate=1", "did you mean 'training.lr'"),
        ("methods.fedavg.lr=1", "did you mean 'training.lr'"),
        ("training.num_rounds=1", "did you mean 'run.rounds'"),
        ("run.clients=1", "did you mean 'partitions.NAME.clients'"),
        ("partitions.mnist5k-dir.n_clients=1", "did you mean 'clients'"),
        ("partitions.mnist5k-dir.scheme=iid", "'alpha' is not accepted; .*--set 'partitions.mnist5k-dir={"),
    ],
)
def test_guesses_lead_to_the_right_place(change, message):
    with one_line_error(message, BadInput):
        load(change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.optimiser=adam", "^training.optimiser: .*did you mean 'optimizer'"),
        ("data.digits.normalise=none", "^data.digits.normalise: .*did you mean 'normalize'"),
        ("methods.fesem.centres=3", "^methods.fesem.centres: .*did you mean 'centers'"),
        ("methods.fedmgda={normalise: true}", "^methods.fedmgda.normalise: .*did you mean 'normalize'"),
        ("run.optimiser=adam", "^run.optimiser: .*did you mean 'training.optimizer'"),
        ("optimiser=adam", "^optimiser: .*did you mean 'training.optimizer'"),
        ("methods.fesem.noise=3", "^methods.fesem.noise: 'noise' is not accepted; expected one of"),
    ],
)
def test_british_names_are_refused_with_the_american_ones(change, message):
    with one_line_error(message, BadInput):
        load(change)


def test_a_label_in_the_grid_of_dvc_is_refused(file):
    write_values(file, lambda values: values["grid"].update(methods=["FedAvg"]))
    check_dvc(file.parent)
    (file.parent / "dvc.yaml").touch()
    with one_line_error("grid.methods: 'FedAvg' .*'fedavg': dvc.yaml makes folders"):
        check_dvc(file.parent)


def test_a_dataset_without_a_network_is_named(file):
    write_values(file, lambda values: values["models"].pop("mnist5k"))
    with one_line_error(r"^models.mnist5k: .*a network for this dataset", BadInput):
        load_params(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1", "params.yaml, line 1: not valid YAML"),
        (b"a: !!python/object/apply:os.system [ls]", "line 1: the tag !!python/object/apply:os"),
        (b"\xff\xfe\x00binary", "line 1: not valid YAML: byte 0xff is not UTF-8"),
        (b"", "params.yaml: None is not accepted; expected a mapping of sections"),
        (b"- 1", "expected a mapping of sections"),
        (b"data: {}", r"^models: missing; expected a mapping of .* \(dataset name -> network\)$"),
        (b"\t", "line 1: not valid YAML"),
        (b"1: 2", "line 1: the key 1 is a number in YAML: put it in quotes"),
        (None, r"cannot read .*params.yaml: No such file.* --root"),
    ],
)
def test_a_file_that_is_no_mapping_of_sections_is_one_line(file, content, message):
    if content is not None:
        file.write_bytes(content)
    with one_line_error(message):
        load_params(file)


def test_set_value_makes_sections_on_the_way():
    values: dict = {"a": "one"}
    set_value(values, "a.b.c=[x, 1]")
    assert values == {"a": {"b": {"c": ["x", 1]}}}


def test_a_new_mapping_says_which_fields_it_drops():
    values: dict = {"grid": {"seeds": [0], "redraw": "both", "methods": []}}
    with pytest.warns(
        UserWarning, match=r"^--set grid: the new value drops redraw, methods; --set grid\.FIELD="
    ):
        set_value(values, "grid={seeds: [1], central: []}")
    with warnings.catch_warnings(action="error"):
        set_value(values, "grid={seeds: [2], central: [], redraw: both}")
        set_value(values, "grid.seeds=[3]")
    assert values == {"grid": {"seeds": [3], "central": [], "redraw": "both"}}


@pytest.mark.parametrize("section", ["data", "partitions"])
@pytest.mark.parametrize("name", ["", ".", "..", "../p", "/p", "a/b", "a b", "a\0b", ".p", "größe", "a:b"])
def test_names_that_cannot_be_folders_are_refused(file, section, name):
    write_values(file, lambda v: v[section].update({name: dict(next(iter(v[section].values())))}))
    with one_line_error(rf"^{section}: .*a name of letters, digits and - _ \.|the key .* expected text"):
        load_params(file)


@pytest.mark.parametrize("name", ["my.part", "my_part-2", "_", "3"])
def test_names_with_dots_can_be_changed_like_others(file, name):
    noise = {"label_noise": {"kind": "symmetric", "ratio": 0.1}}
    write_values(file, lambda v: v["partitions"].update({name: v["partitions"]["mnist5k-dir"] | noise}))
    changes = [f"partitions.{name}.alpha=7", f"partitions.{name}.label_noise.ratio=0.2"]
    entry = load_params(file, changes).partition(name)
    assert entry.parameters.alpha == 7 and entry.label_noise.ratio == 0.2


def test_quotes_make_a_new_name_with_dots():
    part = "{dataset: digits, scheme: iid, clients: 2}"
    params = load(f'partitions."my.part"={part}', "grid.datasets=[digits, mnist5k]")
    assert params.partition("my.part").clients == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["tuned.mnist5k-dir=[fedavg]"], r"^tuned.mnist5k-dir: \['fedavg'\] .*a mapping of methods"),
        (["tuned.mnist5k-dir=5"], r"^tuned.mnist5k-dir: 5 .*a mapping of methods"),
        (["tuned.mnist5k-dir=5", "methods.ditto.lam=1"], r"^tuned.mnist5k-dir: 5 .*a mapping of methods"),
        (["tuned=5", "methods.ditto.lam=1"], r"^tuned: 5 .*a mapping"),
        ([f"training.batch_size={10**30}"], r"^training.batch_size: 10+ .*a whole number >= 0 and <= "),
        ([f"training.lr={10**400}"], r"^training.lr: 10+\.\.\. .*a number > 0"),
        (["models.digits.options.hidden=[0]"], r"^models.digits.options.hidden: \[0\] .*>= 1"),
        (["methods.local.clusters=4"], r"^methods.local.clusters: 'clusters' .*there is nothing to set"),
        (["run={rounds: 5, rounds: 6}"], r"^--set: .*a value in YAML .*the key 'rounds' twice"),
        (["methods.flt.public=fmnist", "grid.methods=[flt]"], r"^grid.datasets: .*'fmnist', which flt"),
    ],
)
def test_values_that_used_to_crash_or_pass_are_refused(changes, message):
    with one_line_error(message, BadInput):
        load(*changes)


def test_a_network_that_is_a_name_keeps_it_when_a_field_is_set():
    values: dict = {"models": {"digits": "mlp"}}
    set_value(values, "models.digits.options.hidden=[7]")
    assert values == {"models": {"digits": {"name": "mlp", "options": {"hidden": [7]}}}}


def test_a_name_that_is_no_text_in_yaml_is_refused(file):
    file.write_text("methods:\n  on: {method: fedavg}\n")
    with one_line_error(r"params.yaml, line 2: the key on is a truth value .*in quotes"):
        load_params(file)


@pytest.mark.parametrize("value", ["[]", "''", "false", "0"])
def test_a_change_of_one_field_does_not_hide_what_is_no_section(file, value):
    file.write_text(f"{LEAST}run: {value}\n")
    with one_line_error(r"^run: .*a mapping", BadInput):
        load_params(file, ["run.rounds=3"])


def test_a_change_of_an_aliased_entry_leaves_the_others(file):
    entries = "\n  one: &one {dataset: mnist5k, scheme: iid, clients: 2}\n  two: *one\n"
    file.write_text(SHIPPED.read_text().replace("\npartitions:\n", f"\npartitions:{entries}"))
    params = load_params(file, ["partitions.one.clients=5"])
    assert (params.partition("one").clients, params.partition("two").clients) == (5, 2)


def test_a_key_that_comes_twice_is_refused(file):
    """The first one would be lost without a word."""
    file.write_text(SHIPPED.read_text().replace("  ditto: {lam: 1.0}\n", "  ditto: {lam: 1.0}\n" * 2))
    with one_line_error(r"params.yaml, line \d+: found the key 'ditto' twice"):
        load_params(file)


def test_a_merged_key_may_be_set_again(file):
    entries = "\n  base: &base {dataset: mnist5k, scheme: iid, clients: 2}\n  more: {<<: *base, clients: 3}\n"
    file.write_text(SHIPPED.read_text().replace("\npartitions:\n", f"\npartitions:{entries}"))
    assert load_params(file).partition("more").clients == 3


def test_a_pipe_is_not_waited_for(file):
    os.mkfifo(file)
    with one_line_error(r"params.yaml: not a regular file$"):
        load_params(file)
