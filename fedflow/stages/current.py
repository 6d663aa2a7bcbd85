"""The digest of the code that would compute a result now, from the names in ``results.csv`` of a study."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError

from fedflow.claims.results import ADAPTED, DIGITS, EQUAL, PROCEDURE
from fedflow.errors import BadInput
from fedflow.local.extensions.extension import REGISTERED
from fedflow.methods import METHODS
from fedflow.models.registry import adapted
from fedflow.procedures import PROCEDURES
from fedflow.project.code import ASIDE
from fedflow.project.identity import Identity
from fedflow.simulation.extensions.all_extensions import registered_modules
from fedflow.simulation.updates import STEPS
from fedflow.stages import procedure
from fedflow.stages.experiment import CODE


def holds(row: Mapping[str, str]) -> bool:
    """True if a row of ``results.csv`` was made by the current code, or a sample showed equal numbers.

    The column ``equal_code`` has the digest of that later code (``studies/recompute.py``).
    """
    now = current_code(row["kind"], row["registered"], row["networks"])
    return bool(now) and now in (row["code"], row.get(EQUAL))


@cache
def current_code(kind: str, registered: str, networks: str) -> str:
    """The first digits of `Identity.code` of a run or a procedure with these names; empty if unknown.

    Settings choose no other code than methods, steps of updates, registered extensions of local training,
    procedures and networks do: a test compares both digests for every study.
    """
    registry = PROCEDURES if kind == PROCEDURE else {**REGISTERED, **STEPS, **METHODS}
    run_code = CODE, *registered_modules()
    roots, skipped = (procedure.CODE, procedure.SKIPPED) if kind == PROCEDURE else (run_code, ASIDE)
    if not all(name in registry for name in registered.split()):
        return ""
    modules = [*roots, *(registry[name].__module__ for name in registered.split())]
    try:
        made_of = [
            adapted(name.removesuffix(ADAPTED), {"lora": {}} if name.endswith(ADAPTED) else {})
            for name in networks.split()
        ]
    except (BadInput, PackageNotFoundError):  # an unknown network, or a library that is not installed
        return ""
    return Identity.of({}, None, {}, modules, networks=made_of, aside=skipped).code[:DIGITS]
