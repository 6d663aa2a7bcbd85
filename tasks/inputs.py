"""Tasks that turn a named source into prepared images, and prepared images into a partition."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from fedflow.config import Params
from fedflow.experiment import prepare_dataset, prepare_partition


@task(name="prepare", task_run_name="prepare {name}", retries=1, retry_delay_seconds=5, cache_policy=NO_CACHE)
def prepare_data(params: Params, name: str, root: str) -> str:
    """Prepared images of one dataset; nothing to do when they are there. Retried once: it may download."""
    return str(prepare_dataset(params, name, Path(root)))


@task(name="partition", task_run_name="partition {name}", cache_policy=NO_CACHE)
def make_partition(params: Params, name: str, root: str) -> str:
    """One partition's folder; nothing to do when it is there."""
    return str(prepare_partition(params, name, Path(root)))
