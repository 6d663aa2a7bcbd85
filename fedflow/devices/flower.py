"""Methods of fedflow in Flower: `Strategy` for a ServerApp, and `client_app`; with the extra ``flower``."""

from typing import TYPE_CHECKING, Any

from fedflow.project.distribution import require

if TYPE_CHECKING:
    from fedflow.devices.flower_apps import Strategy, client_app

__all__ = ["Strategy", "client_app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    require("fedflow.flower", "flwr", part="flower")
    from fedflow.devices import flower_apps

    return getattr(flower_apps, name)
