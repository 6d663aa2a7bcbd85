"""The record of every run in MLflow. Only this package knows MLflow, and imports it when first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedflow.project.distribution import require

if TYPE_CHECKING:
    from fedflow.tracking.models import (
        ModelCard,
        attach,
        attach_to_sweep,
        export_model,
        import_model,
        load_model,
        load_served,
        served_model,
    )
    from fedflow.tracking.pages import runs_pages
    from fedflow.tracking.record import Record, RunRecord, open_record, open_run
    from fedflow.tracking.store import check_store, initialize, move_store, ui_command

__all__ = [
    "ModelCard",
    "Record",
    "RunRecord",
    "attach",
    "attach_to_sweep",
    "check_store",
    "export_model",
    "import_model",
    "initialize",
    "load_model",
    "load_served",
    "move_store",
    "open_record",
    "open_run",
    "runs_pages",
    "served_model",
    "ui_command",
]

PLACES = {  # modules, imported when they are used, as most import PyTorch
    "models": (
        "ModelCard",
        "attach",
        "attach_to_sweep",
        "export_model",
        "import_model",
        "load_model",
        "load_served",
        "served_model",
    ),
    "pages": ("runs_pages",),
    "record": ("Record", "RunRecord", "open_record", "open_run"),
    "store": ("check_store", "initialize", "move_store", "ui_command"),
}


def __getattr__(name: str) -> Any:
    for module, own in PLACES.items():
        if name in own:
            require("the record of runs", "mlflow")
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
