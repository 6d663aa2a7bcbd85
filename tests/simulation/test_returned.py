"""What hooks of the server return is checked, in one line."""

import json
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from support import images, refused, run

from fedflow.data import Dataset
from fedflow.errors import FedflowError, RoundFailed
from fedflow.local.client import Client, Update
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Cohort, GlobalModel, Round
from fedflow.simulation.returned import plain


class Given(FedAvg):
    """FedAvg whose hooks return what the test says."""

    name = "given"


@pytest.mark.parametrize("found", [[0, 0], [-1, 0], [0, 400], np.array([[0], [1]]), [0.5, 1.5], []])
def test_a_cohort_is_distinct_clients(digits: Dataset, found: Any) -> None:
    class Planned(Given):
        def plan(self, now: Round, server: Any, chances: np.ndarray, size: int) -> Any:
            return np.array(found), server

    with pytest.raises(
        FedflowError, match=r"given\.plan must return (distinct clients from 0 to|a cohort \[m\])"
    ):
        run(Planned(), images(digits))


def test_a_plan_has_a_state(digits: Dataset) -> None:
    class Planned(Given):
        def plan(self, now: Round, server: Any, chances: np.ndarray, size: int) -> Any:
            return np.array([0, 1])

    with pytest.raises(
        FedflowError, match=r"given\.plan must return a cohort \[m\], m >= 1, and the server's state"
    ):
        run(Planned(), images(digits))


@pytest.mark.parametrize(
    ("hook", "wanted"),
    [
        ("broadcast", "a dictionary of tensors, not Tensor"),
        ("model_for", "a model [D], or a pair of it and its number, not tuple"),
        ("work", "Passes, not Tensor"),
    ],
)
def test_values_of_other_types_are_refused(digits: Dataset, hook: str, wanted: str) -> None:
    returned = (torch.zeros(3),) * 3 if hook == "model_for" else torch.zeros(3)
    method = type("Odd", (Given,), {hook: lambda self, *_: returned})()
    with refused(re.escape(f"given.{hook} must return {wanted}"), FedflowError):
        run(method, images(digits)).outcome()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda client: None, "given.local must return client.update(...), not NoneType"),
        (
            lambda client: client.update(model=client.received["model"], weight=-1.0),
            "its weight is -1, not a number >= 0",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:given")
def test_an_update_that_the_server_cannot_use_is_a_failure_of_its_client(
    digits: Dataset, answer: Any, reason: str
) -> None:
    class Odd(Given):
        def local(self, client: Client) -> Update:
            return answer(client)

    for cohort in ("loop", "vmap"):
        with pytest.raises(RoundFailed, match=re.escape(reason)):
            run(Odd(), images(digits), cohort=cohort)


def test_a_state_has_tensors(digits: Dataset) -> None:
    @dataclass(frozen=True)
    class State(GlobalModel):
        count: Any = None

    class Counting(Given):
        def setup(self, model: Any, initial: Any) -> State:
            return State(initial(0), 1.0)

    said = r"given\.setup: count of the state must be a tensor or None, not float"
    with pytest.raises(FedflowError, match=said):
        run(Counting(), images(digits))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (lambda cohort: cohort.mean("modle"), r"cohort\.mean\('modle'\): clients sent model"),
        (lambda cohort: cohort.stack("model"), r"cohort\.vectors\('model'\) needs gathers = True"),
        (lambda cohort: cohort.mean("model", weights=np.ones(2)), r"weights=\.\.\.\) needs gathers = True"),
        (lambda cohort: cohort.scalars("loss"), r"cohort\.scalars\('loss'\): clients sent none"),
    ],
)
def test_what_clients_did_not_send_is_named(digits: Dataset, asked: Any, said: str) -> None:
    class Asking(Given):
        def aggregate(self, now: Round, server: Any, cohort: Cohort) -> Any:
            return server, {"asked": asked(cohort)}

    with pytest.raises(FedflowError, match=said):
        run(Asking(), images(digits))


def test_numbers_of_python_are_scalars(digits: Dataset) -> None:
    class Sending(Given):
        def local(self, client: Any) -> Any:
            return client.update(model=client.received["model"], scalars={"one": 1.5})

        def aggregate(self, now: Round, server: Any, cohort: Cohort) -> Any:
            assert torch.tensor(cohort.scalars("one")).eq(1.5).all()
            return server, {}

    run(Sending(), images(digits))


def test_a_mean_without_weights_is_one_line(digits: Dataset) -> None:
    class Weightless(Given):
        def local(self, client: Any) -> Any:
            return client.update(model=client.received["model"], weight=0.0)

    with pytest.raises(FedflowError, match=r"cohort\.mean\('model'\): no update has a weight above 0"):
        run(Weightless(), images(digits))


def test_a_mean_of_a_group_without_updates_names_the_group(digits: Dataset) -> None:
    class Grouped(Given):
        def aggregate(self, now: Round, server: Any, cohort: Cohort) -> Any:
            return replace(server, model=cohort.mean("model", group=7)), {}

    with pytest.raises(FedflowError, match=r"'model'\): no update of group 7 has a weight above 0"):
        run(Grouped(), images(digits))


def test_updates_may_carry_gradients(digits: Dataset) -> None:
    class Stepping(Given):
        def local(self, client: Any) -> Any:
            w = client.received["model"].clone().requires_grad_()
            gradient = torch.autograd.grad(client.full_loss(w), w)[0]
            return client.update(model=w - 0.1 * gradient, weight=w.sum() * 0 + 1)

    assert not run(Stepping(), images(digits), cohort="loop").rounds[-1].failed


def test_numbers_of_a_round_are_plain() -> None:
    found = plain({"a": np.float32(0.5), "b": torch.tensor(2), "c": None, "d": 3, "e": True})
    assert found == {"a": 0.5, "b": 2, "c": None, "d": 3, "e": True}
    assert json.loads(json.dumps(found)) == found
    with pytest.raises(FedflowError, match=r"^method/a of an extension must be a number or None \(could not"):
        plain({"method/a": "much"})
