"""The record of every run in MLflow. Only this package knows MLflow, and imports it when first used."""

from fedflow.tracking.models import ModelCard, load_model
from fedflow.tracking.record import RunRecord, open_run
from fedflow.tracking.store import initialise, ui_command

__all__ = ["ModelCard", "RunRecord", "initialise", "load_model", "open_run", "ui_command"]
