"""fedflow: federated-learning experiments that are right, fast, tracked and restartable.

In a notebook: ``import fedflow as ff`` and ``ff.run(partition=ff.dirichlet(alpha=0.1), method=ff.Ditto())``.
Partition schemes are functions (`ff.dirichlet`), methods classes (`ff.Ditto`).
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

FRONT = {  # imported when they are used, as torch takes a second
    "run": "fedflow.front.runner",
    "Result": "fedflow.front.result",
    "Comparison": "fedflow.front.result",
    "compare": "fedflow.front.result",
    "dataset": "fedflow.front.arrays",
    "scheme": "fedflow.front.inputs",
    "Training": "fedflow.local.local_training",
    "Method": "fedflow.methods.method",
    "Client": "fedflow.local.client",
    "Update": "fedflow.local.client",
    "Batch": "fedflow.local.samples",
    "option": "fedflow.settings",
}
NAMES = "fedflow.front.names"  # which finds methods and schemes
INSIDE = {"Training": "LocalTraining"}  # names within their modules, if others


def __getattr__(name: str) -> Any:
    if name in FRONT:
        return getattr(import_module(FRONT[name]), INSIDE.get(name, name))
    if name.startswith("_"):
        raise AttributeError(name)
    return import_module(NAMES).lookup(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *FRONT, *import_module(NAMES).known()})
