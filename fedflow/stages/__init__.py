"""The stages of the pipeline: functions of `Params` and a project's folder, without Prefect or DVC."""
