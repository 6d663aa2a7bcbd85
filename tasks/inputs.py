"""Tasks that prepare datasets, train central networks, and divide datasets among clients, unless current."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from fedflow.stages.central_network import prepare_network
from fedflow.stages.inputs import Makers
from fedflow.stages.partition import prepare_partition
from fedflow.stages.prepare import prepare_dataset

# Retried once: it may download.
prepare_data = task(
    name="prepare", task_run_name="prepare {name}", retries=1, retry_delay_seconds=5, cache_policy=NO_CACHE
)(prepare_dataset)
train_network = task(name="central", task_run_name="central {name}", cache_policy=NO_CACHE)(prepare_network)
make_partition = task(name="partition", task_run_name="partition {name}", cache_policy=NO_CACHE)(
    prepare_partition
)
TASKS: Makers = {"datasets": prepare_data, "networks": train_network, "partitions": make_partition}
