"""Every registered method, from params.yaml to the record: models loaded from MLflow are those served."""

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from profiles import served
from support import NETWORKS

from fedflow.config import load_params
from fedflow.data import load_prepared
from fedflow.methods import METHODS
from fedflow.methods.protocols import Clustered, Leveled, Pruning
from fedflow.partition import load_partition
from fedflow.simulation.executors import Inline
from fedflow.simulation.extensions.recording import FILE, load_vectors
from fedflow.stages.experiment import Experiment
from fedflow.stages.federate import perform
from fedflow.stages.partition import prepare_partition
from fedflow.stages.prepare import prepare_dataset
from fedflow.tracking.models import load_model
from fedflow.tracking.store import open_store

PARAMS = """
data: {digits: {source: digits, train_limit: 200, test_limit: 60, normalize: none}}
models: {digits: mlp}
partitions: {few: {dataset: digits, scheme: label_groups, groups: 2, clients: 4, newcomers: 0.25, public: 20,
  selection: 0.1}}
training: {epochs: 2, batch_size: 32, lr: 0.1}
run: {rounds: 2, participation: 0.7, evaluate_every: 2, checkpoint_every: 2, fine_tune: false}
grid: {datasets: [digits], partitions: [few], methods: [fedavg], seeds: [0]}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project folder with a store that all methods share."""
    root = tmp_path_factory.mktemp("project")
    (root / "params.yaml").write_text(PARAMS)
    params = load_params(root / "params.yaml")
    prepare_dataset(params, "digits", root)
    prepare_partition(params, "few", root)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield root


@pytest.mark.by_profile(kind=served)
@pytest.mark.parametrize("name", METHODS)
def test_recorded_models_are_those_that_were_served(name: str, root: Path) -> None:
    network, options = NETWORKS.get(name, ("mlp", {"hidden": [8]}))
    changes = [f"models.digits={json.dumps({'name': network, 'options': options})}"]
    experiment = Experiment(load_params(root / "params.yaml", changes), "few", name, 0, root)
    metrics = perform(experiment, Inline()).metrics
    assert metrics["newcomers"] == 1 and metrics["newcomer_accuracy"] is not None
    partition, test = (
        load_partition(experiment.partition_folder),
        load_prepared(experiment.prepared_folder).test,
    )
    api = open_store(root).client()
    (found,) = api.search_experiments(filter_string="name = 'digits/few'")
    run = next(r for r in api.search_runs([found.experiment_id]) if r.data.tags["method"] == name)
    partition_files = [f.path for f in api.list_artifacts(run.info.run_id, "partition")]
    assert partition_files == ["partition/labels.png"]
    clients = pd.read_parquet(experiment.results_folder / "clients.parquet").query("not newcomer")
    logged = {f.path.removeprefix("clusters/") for f in api.list_artifacts(run.info.run_id, "clusters")}
    if METHODS[name].serves == "cluster":
        measured = {f"clusters/{name}" for name in ("ari", "nmi", "clustering_error", "clusters")}
        assert measured <= run.data.metrics.keys()
        assert "assignment.png" in logged
        for cluster in set(clients.cluster):
            (version,) = api.search_model_versions(f"name = 'few.{name}.cluster-{cluster}'")
            assert version.run_id == run.info.run_id
            assert f"cluster-{cluster}.png" in logged and "clusters.json" in logged
    matrix = experiment.results_folder / "proximity.parquet"
    if getattr(METHODS[name], "dissimilarity", Clustered.dissimilarity) is not Clustered.dissimilarity:
        proximity = pd.read_parquet(matrix)
        assert (
            set(proximity.index) <= set(clients.client)
            and (proximity.to_numpy() == proximity.to_numpy().T).all()
        )
        assert {"proximity.png", "embedding.png"} <= logged or len(proximity) < 3
    else:
        assert not matrix.exists() and "proximity.png" not in logged
    pruned = issubclass(METHODS[name], Pruning)
    masks = {f.path.removeprefix("masks/") for f in api.list_artifacts(run.info.run_id, "masks")}
    assert ({"pruned.png", "overlap.png", "shared_labels.png"} <= masks) is pruned
    vectors = experiment.results_folder / FILE
    recorded = load_vectors(vectors).vectors if vectors.exists() else []
    assert all(own.keys() == {"mask"} for own in recorded) and len(recorded) == pruned * len(clients)
    serves, method = METHODS[name].serves, METHODS[name]()

    def level_of(client: int) -> str:
        return method.level(client, partition.training_clients) if isinstance(method, Leveled) else ""

    for client, cluster, accuracy in zip(clients.client, clients.cluster, clients.local_accuracy):
        which = {"cluster": f"cluster-{cluster}", "level": level_of(client)}.get(serves, serves)
        own = {"client": client} if which == "personal" else {}
        network = load_model(run.info.run_id, which, root=root, compact=pruned, **own)
        rows = torch.as_tensor(partition.test(client))
        with torch.no_grad():
            hits = network(test.inputs(rows)).argmax(-1) == test.targets(rows)
        assert hits.double().mean().item() == pytest.approx(accuracy)
