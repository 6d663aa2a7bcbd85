"""``params.yaml``: the settings of every stage, checked by one schema."""

from fedflow.config.params import (
    PARAMS,
    CentralParams,
    Changes,
    EngineSettings,
    MethodParams,
    ModelParams,
    Params,
    check_dvc,
    digest,
    load_params,
    read_yaml,
    set_value,
)

__all__ = [
    "PARAMS",
    "CentralParams",
    "Changes",
    "EngineSettings",
    "MethodParams",
    "ModelParams",
    "Params",
    "check_dvc",
    "digest",
    "load_params",
    "read_yaml",
    "set_value",
]
