"""The work pools of docs/howto/schedulers.md: Prefect's server accepts them and their variables."""

import json
from pathlib import Path
from typing import Any

import prefect
import pytest
import yaml

CHECKOUT = Path(__file__).parents[2]
GUIDE = CHECKOUT / "docs" / "howto" / "schedulers.md"
WORKERS = Path(prefect.__file__).parent / "server/api/collections_data/views/aggregate-worker-metadata.json"
PULL = [{"prefect.deployments.steps.set_working_directory": {"directory": "/project"}}]


def snippets() -> list[str]:
    """The YAML of the guide: the pools, and a deployment's pull steps."""
    return [part.split("```")[0] for part in GUIDE.read_text().split("```yaml\n")[1:]]


def pools() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(snippets()[0])["definitions"]["work_pools"]


def template(pool: str) -> dict[str, Any]:
    """The base job template of a pool of the guide."""
    if pool == "kubernetes":
        return json.loads((CHECKOUT / "docker" / "kubernetes.json").read_text())
    package, kind = ("prefect-docker", "docker") if pool == "docker" else ("prefect", "process")
    return json.loads(WORKERS.read_text())[package][kind]["default_base_job_configuration"]


@pytest.fixture
def create(api: str):
    """Creates a pool of the guide, and a deployment with these variables; returns its variables."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    with get_client(sync_client=True) as client:

        def make(pool: str, **changes: Any) -> dict[str, Any]:
            kind = "process" if pool == "slurm" else pool
            given = WorkPoolCreate(name=f"guide-{pool}", type=kind, base_job_template=template(pool))
            client.create_work_pool(given, overwrite=True)
            flow = client.create_flow_from_name("pooled")
            number = client.create_deployment(
                flow,
                name=pool,
                work_pool_name=f"guide-{pool}",
                job_variables=pools()[pool]["job_variables"] | changes,
            )
            return client.read_deployment(number).job_variables

        yield make


@pytest.mark.parametrize("pool", ["docker", "kubernetes", "slurm"])
def test_the_server_accepts_the_pools_of_the_guide(create, pool) -> None:
    given = pools()[pool]["job_variables"]
    assert given.keys() <= template(pool)["variables"]["properties"].keys()
    assert create(pool) == given


def test_the_server_refuses_a_variable_of_another_type(create) -> None:
    from prefect.exceptions import PrefectHTTPStatusError

    with pytest.raises(PrefectHTTPStatusError, match="Validation failed for field 'gpus'"):
        create("kubernetes", gpus="many")


def test_containers_mount_the_project_where_the_deployment_reads_it() -> None:
    from prefect.utilities.templating import apply_values

    made = template("kubernetes")
    defaults = {name: variable.get("default") for name, variable in made["variables"]["properties"].items()}
    filled = apply_values(
        made["job_configuration"]["job_manifest"], defaults | pools()["kubernetes"]["job_variables"]
    )
    spec = filled["spec"]["template"]["spec"]
    (container,), (volume,) = spec["containers"], spec["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "fedflow"}
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/project"}]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert yaml.safe_load(snippets()[1]) == {"pull": PULL} and container["workingDir"] == "/project"
    assert pools()["docker"]["job_variables"]["volumes"] == ["{{ $PWD }}:/project"]
