"""``params.yaml``: the settings of every stage, checked by one schema."""

from fedflow.config.changing import read_yaml, set_value
from fedflow.config.loading import PARAMS, Changes, Loaded, check_dvc, load_params, warn_of_kept
from fedflow.config.params import Params
from fedflow.config.sections import CentralParams, EngineSettings, MethodParams, ModelParams

__all__ = [
    "PARAMS",
    "CentralParams",
    "Changes",
    "EngineSettings",
    "Loaded",
    "MethodParams",
    "ModelParams",
    "Params",
    "check_dvc",
    "load_params",
    "read_yaml",
    "set_value",
    "warn_of_kept",
]
