"""The record of every run in MLflow. Only this package knows MLflow, and imports it when first used."""

from fedflow.tracking.models import (
    ModelCard,
    attach,
    export_model,
    import_model,
    load_model,
    load_served,
)
from fedflow.tracking.record import Record, RunRecord, open_record, open_run
from fedflow.tracking.store import check_store, initialise, move_store, ui_command

__all__ = [
    "ModelCard",
    "Record",
    "RunRecord",
    "attach",
    "check_store",
    "export_model",
    "import_model",
    "initialise",
    "load_model",
    "load_served",
    "move_store",
    "open_record",
    "open_run",
    "ui_command",
]
