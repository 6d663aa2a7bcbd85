"""FedBuff: stale updates count less, by hand; without delays it is FedAvg."""

import pytest
from support import quadratics, run

from fedflow.simulation.federation import Federation

ROOT = 2**0.5


@pytest.mark.parametrize(
    ("staleness", "models"),
    [("none", [0, 2, 2, 1, 2]), ("sqrt", [0, ROOT, ROOT, ROOT / 2, ROOT / 2 + (2 - ROOT / 2) / 3**0.5])],
)
def test_stale_updates_count_less(staleness: str, models: list[float], cohort: str) -> None:
    """Updates are half of the way to b = 0, 4, 8 from the received model; delays are 0, 1, 1, 0, 2 steps."""
    clients = quadratics(((1, 0), (1, 4), (1, 8)), (10, 10, 10), start=0)
    ran = run(
        "fedbuff",
        clients,
        {"concurrency": 3, "staleness": staleness},
        training={"epochs": 1, "lr": 0.5},
        participation=0.34,
        rounds=5,
        timing={"given": [[0, 2, 0], [0, 3, 0], [0, 7, 0]]},
        cohort=cohort,
    )
    assert ran.values("delay") == [0, 1, 1, 0, 2]
    assert ran.server("model") == pytest.approx(models, rel=0, abs=1e-12)


def test_it_divides_by_m_and_not_by_the_sum_of_the_weights() -> None:
    """Algorithm 1: for two equally stale updates with s = 1 / sqrt(2), the step is mean / sqrt(2)."""
    clients = quadratics(((1, 4), (1, 4), (1, 4), (1, 4)), (5, 5, 5, 5), start=0)
    ran = run(
        "fedbuff",
        clients,
        {"concurrency": 2},
        training={"epochs": 1, "lr": 0.5},
        participation=0.5,
        rounds=2,
        timing={"given": [[0, 2, 0], [0, 2, 0], [0, 3, 0], [0, 3, 0]]},
    )
    assert ran.values("delay")[1] == 1
    assert ran.server("model") == pytest.approx([2, 2 + 2 / ROOT])


@pytest.mark.parametrize("hyper", [{}, {"server_lr": 0.5}])
def test_without_delays_it_is_fedavg(federation: Federation, hyper: dict, cohort: str) -> None:
    alike = {"participation": 0.5, "rounds": 3, "cohort": cohort}
    waiting = run("fedbuff", federation, hyper | {"concurrency": 0}, **alike)
    plain = run("fedavg", federation, hyper | {"weighting": "uniform"}, **alike)
    assert waiting.simulation.state.server.model.numpy() == pytest.approx(
        plain.simulation.state.server.model.numpy(), abs=1e-5
    )
