"""Central training as a Prefect flow."""

ENTRY = "central.expert={dataset: digits, training: {epochs: 2}}"


def test_the_flow_prepares_the_data_trains_and_shows_the_epochs(api, root, seen):
    from flows.central import central

    metrics = central("expert", [ENTRY], str(root))
    assert metrics["parameters"] == 1210 and 0 < metrics["test_accuracy"] <= 1
    page = seen("central")
    assert page.flow_run.name == "central · expert" and page.flow_run.state.is_completed()
    assert {task.name for task in page.tasks} == {"central expert", "prepare digits"}
    assert {a.key: a.type for a in page.artifacts} == {
        "central-expert-epochs": "table",
        "central-expert-mlflow": "markdown",
        "central-expert-progress": "progress",
    }
    assert [a.data for a in page.artifacts if a.type == "progress"] == [100.0]
