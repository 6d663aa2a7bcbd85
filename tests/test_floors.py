"""The import graph of fedflow, flows and tasks: no circles, no import upward, edges only at the edges."""

import ast
from graphlib import CycleError, TopologicalSorter

from rooms import FILES, floor, graph, imports

KNOW_EXTENSIONS = (
    "local.local_training",  # their keys in params.yaml
    "simulation.settings",  # `run.adapt`, as is
    "simulation.extensions.further_scores",
)

UPDATES = ("__init__", "path", "sending", "step")  # no steps
PATH = {f"fedflow.simulation.updates.{name}" for name in UPDATES}


def users(*packages: str) -> set[str]:
    return {name for name, used in graph().items() if any(u.split(".")[0] in packages for u in used)}


def test_modules_do_not_import_one_another_in_circles() -> None:
    try:
        TopologicalSorter({name: used & FILES.keys() for name, used in graph().items()}).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_no_module_imports_from_a_floor_above() -> None:
    upward = [
        f"{n} -> {u}" for n, used in graph().items() for u in used & FILES.keys() if floor(u) > floor(n)
    ]
    assert not upward


def test_the_engine_knows_no_extension_of_local_training_by_name() -> None:
    """It neither imports one nor reads its key of `LocalTraining`; measures of a run may do so."""
    folder = "fedflow.local.extensions."
    features = {name for name in FILES if name.startswith(folder)} - {f"{folder}extension"}
    engine = {name for name in FILES if name.startswith(("fedflow.local.", "fedflow.simulation."))}
    engine -= features | {f"fedflow.{name}" for name in KNOW_EXTENSIONS}
    keys = {"adaptation", "augment", "curriculum", "objective"}
    known = {f"{name} -> {used}" for name in engine for used in imports(name) & features}
    for name in engine:
        read = (
            node for node in ast.walk(ast.parse(FILES[name].read_text())) if isinstance(node, ast.Attribute)
        )
        known |= {f"{name}: .{node.attr}" for node in read if node.attr in keys}
    assert len(features) == 4 and not known


def test_the_run_knows_no_extension_of_a_run_by_name() -> None:
    """Only the list of all of them and the settings, which have their keys, do."""
    folder = "fedflow.simulation.extensions."
    features = {name for name in FILES if name.startswith(folder)} - {f"{folder}extension"}
    engine = {name for name in FILES if name.startswith("fedflow.simulation.")} - features
    known = {f"{name} -> {used}" for name in engine for used in imports(name) & features}
    settings = {
        f"fedflow.simulation.settings -> {folder}{name}" for name in ("client_curriculum", "trained_means")
    }
    assert known == settings | {f"fedflow.simulation.setup -> {folder}all_extensions"}


def test_the_engine_knows_no_step_of_updates_by_name() -> None:
    folder = "fedflow.simulation.updates"
    steps = {f"{folder}.{path.stem}" for path in FILES[f"{folder}.step"].parent.glob("*.py")} - PATH
    users = {name for name, used in graph().items() if used & steps}
    assert steps >= {f"{folder}.clip", f"{folder}.secure"} and users == {folder}


def test_edges_are_used_at_the_edges_only() -> None:
    assert all(name.startswith("fedflow.tracking.") for name in users("mlflow"))
    assert not any(name.startswith("fedflow.") for name in users("prefect", "flows", "tasks"))
