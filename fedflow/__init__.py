"""fedflow: federated-learning experiments that are right, fast, tracked and restartable.

In a notebook: ``import fedflow as ff`` and ``ff.run(partition=ff.dirichlet(alpha=0.1), method=ff.Ditto())``.
The public names are the imports of ``fedflow/__init__.pyi``, which are made when a name is used, as torch
takes a second.
"""

from importlib import import_module as _import_module

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name.startswith("_"):
        raise AttributeError(name)
    return _import_module("fedflow.front.names").lookup(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_import_module("fedflow.front.names").known()})
