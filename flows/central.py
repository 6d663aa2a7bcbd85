"""One network on a whole dataset: a teacher, an expert, or the reference of federated training."""

from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow

from fedflow.stages.central_network import results
from tasks.inputs import prepare_data, train_network
from tasks.mistakes import checked, checking
from tasks.progress import ProgressBar, link_record, network_table


@flow(name="central", flow_run_name="central · {name}", log_prints=True, validate_parameters=False)
def central(name: str, settings: list[str] | None = None, root: str = ".") -> dict[str, Any]:
    """Train a central network, and make its dataset and teachers; returns its metrics.

    Args:
        name: a name under ``central`` in params.yaml
        settings: changes to params.yaml, such as ``central.expert.training.epochs=5``
        root: the project's folder
    """
    with checking():
        params = checked(settings, root, name=name)
        params.network(name)
    bar = ProgressBar(f"central · {name}", "central", name, "progress")
    link = partial(link_record, parts=("central", name))
    folder = train_network(params, name, Path(root), prepare_data, listeners=[bar.step], opened=link)
    network_table(name, folder)
    return results(Path(root), name)
