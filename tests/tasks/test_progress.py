"""Keys of artifacts in Prefect."""

from tasks.progress import artifact_key


def test_names_that_differ_have_keys_that_differ() -> None:
    names = ("a-b", "a_b", "A-b", "a--b", "a b", "lg_fedavg", "lg-fedavg", "lg-FedAvg")
    keys = {name: artifact_key("p", name, 0, "rounds") for name in names}
    assert len({*keys.values()}) == len(names)
    assert keys["a-b"].startswith("p-a-b-0-rounds-") and artifact_key("p-q", "x", 0) == "p-q-x-0"


def test_parts_that_differ_have_keys_that_differ() -> None:
    for one, other in (
        (("x-a", "b", 0), ("x", "a-b", 0)),
        (("x-lg", "fedavg", 0), ("x", "lg_fedavg", 0)),
        (("central", "a", 0, "mlflow"), ("central", "a-0", "mlflow")),
        (("X-a", "b"), ("X", "a-b")),
    ):
        assert artifact_key(*one) != artifact_key(*other)
