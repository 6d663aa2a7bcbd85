"""A client that never took part is served what the method's page says, not what it would train from."""

import pytest
import torch
from support import DENSE, quadratics, run, with_cohorts

from fedflow.methods import METHODS, build_method

# Without held-out samples; without pruning, as this network has no layers.
HYPER = {"superfed": {"lam": "fixed"}, **DENSE}
PERSONAL = [name for name, method in METHODS.items() if method.newcomer]


@pytest.mark.parametrize("name", PERSONAL)
def test_a_client_that_never_took_part_is_served_the_common_model(name: str) -> None:
    """Client 1 of the test-bed T1, where only client 0 trains; its kept vectors do not change."""
    ran = run(with_cohorts(build_method(name, HYPER.get(name)), [[0]] * 3), quadratics())
    served, (common,) = ran.outcome().models, set(METHODS[name].newcomer.values())
    torch.testing.assert_close(served[1], ran.servers[-1][common], rtol=0, atol=1e-12)
    assert float(served[1]) != 0.5
    assert all(own[1] == 0.5 for vector in METHODS[name].newcomer for own in ran.kept(vector))
