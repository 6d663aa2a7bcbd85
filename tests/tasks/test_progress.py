"""Keys of artifacts in Prefect."""

from tasks.progress import artifact_key


def test_names_that_differ_have_keys_that_differ() -> None:
    names = ("a-b", "a_b", "A-b", "a--b", "a b", "lg_fedavg", "lg-fedavg", "lg-FedAvg")
    keys = {name: artifact_key("p", name, 0, "rounds") for name in names}
    assert len({*keys.values()}) == len(names)
    assert (keys["a-b"], keys["lg_fedavg"]) == ("p-a-b-0-rounds", "p-lg-fedavg-0-rounds")
