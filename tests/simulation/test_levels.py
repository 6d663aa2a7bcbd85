"""Clients with networks of different sizes: which model trains, is kept, is scored and is reported."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest
import torch
from support import Workers, images, prepare_run, refused, run, suited
from torch import Tensor, nn

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.methods.method import Cohort, Diagnostics, GlobalModel, Message, Method, Round
from fedflow.methods.protocols import Leveled
from fedflow.models.flat import FlatModel


@dataclass(frozen=True)
class Both(GlobalModel):
    small: Tensor


class TwoWidths(Leveled, Method):
    """Even clients hold half of the hidden units; every entry is averaged over those that hold it."""

    name, label = "two_widths", "Two widths"
    serves: ClassVar[str] = "level"

    def networks(self) -> dict[str, dict]:
        return {"half": {"hidden": [8]}, "whole": {}}

    def level(self, client: int, clients: int) -> str:
        return ("half", "whole")[client % 2]

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> Both:
        w = initial(0)
        return Both(w, w[model.variant(hidden=[8]).within(model)])

    def broadcast(self, now: Round, server: Both, client: int) -> Message:
        return {"model": (server.small, server.model)[client % 2]}

    def local(self, client: Client) -> Update:
        w = client.fit(start=client.received["model"])
        return client.update(model=w, weight=1.0, group=0 if client.level == "half" else 1)

    def aggregate(self, now: Round, server: Both, cohort: Cohort) -> tuple[Both, Diagnostics]:
        inside = now.model.variant(hidden=[8]).within(now.model)
        counts = [cohort.groups.count(group) for group in (0, 1)]
        half, whole = (cohort.mean("model", group) for group in (0, 1))
        w = whole.clone()
        w[inside] = (counts[0] * half + counts[1] * whole[inside]) / sum(counts)
        return Both(w, w[inside]), {}


EVERYTHING = {"keep_trained": True, "reports": ["server", "active", "all"], "evaluate_every": 1}


def test_entries_are_the_first_ones_of_every_dimension(digits):
    model = images(digits).model
    small = model.variant(hidden=[8])
    w = torch.arange(model.size, dtype=torch.float32)
    whole, part = model.views(w), small.views(w[small.within(model)])
    assert all(torch.equal(part[n], whole[n][tuple(map(slice, part[n].shape))]) for n in small.names)
    assert small.size == 8 * 64 + 8 + 10 * 8 + 10
    assert torch.equal(model.within(model), torch.arange(model.size))
    assert model.variant(hidden=[8]) is small
    with refused(
        "model.name: mlp is not accepted; expected networks that nest: one level has layers.1.weight"
    ):
        model.within(small)
    with pytest.raises(BadInput, match="the whole network has no such part"):
        model.variant(hidden=[16, 8]).within(model)


class Encoder(nn.Linear):
    """A network with another method."""

    def encode(self, x: Tensor, scale: Tensor) -> Tensor:
        return scale * (x @ self.weight.T)


def test_another_method_of_the_network_can_be_called():
    model = FlatModel(partial(Encoder, 3, 2))
    w, x = model.init(0), torch.ones(5, 3)
    assert torch.equal(model.call("forward", w, x), model.outputs(w, x))
    sums = w[:6].view(2, 3).sum(1)
    assert torch.allclose(model.call("encode", w, x, torch.tensor(2.0)), 2 * sums.expand(5, 2))


@pytest.mark.parametrize("cohort", ["loop", "vmap"])
def test_clients_train_keep_and_are_scored_with_networks_of_their_level(digits, cohort):
    federation = images(digits)
    ran = run(TwoWidths.parse({}), federation, cohort=cohort, **EVERYTHING)
    sizes = {
        name: net.size
        for name, net in {"half": federation.model.variant(hidden=[8]), "whole": federation.model}.items()
    }
    assert [len(w) for w in ran.clients[-1]["trained"]] == [
        sizes[("half", "whole")[k % 2]] for k in range(ran.simulation.clients)
    ]
    last, outcome = ran.rounds[-1].values, ran.outcome()
    assert [len(w) for w in outcome.models.values()] == [*sizes.values()]
    for level, clients in ran.simulation.levels.items():
        net, test = (
            federation.model.variant(hidden=[8]) if level == "half" else federation.model,
            federation.test,
        )
        for kind in ("server", "all"):
            rows = torch.stack([ran.clients[-1]["trained"][k] for k in clients])
            w = (
                rows.double().mean(0).float()
                if kind == "all"
                else ran.servers[-1]["small" if level == "half" else "model"]
            )
            hits = net.hits(
                net.outputs(w, test.inputs(torch.arange(len(test)))), test.targets(torch.arange(len(test)))
            )
            assert last[f"level/{kind}_accuracy/{level}"] == pytest.approx(
                hits.float().mean().item(), abs=1e-6
            )
        assert last[f"level/local_accuracy/{level}"] == pytest.approx(
            outcome.scores.local_accuracy[clients].mean()
        )
        assert (
            last[f"level/bytes_up/{level}"]
            == last[f"level/bytes_down/{level}"]
            == 3 * 4 * sizes[level] * len(clients)
        )
    assert last["bytes_up"] == sum(last[f"level/bytes_up/{level}"] for level in sizes)


def test_workers_cohorts_and_a_resume_change_nothing(digits, tmp_path):
    about = dict(rounds=4, participation=0.75, **EVERYTHING)
    whole = run(TwoWidths.parse({}), images(digits), **about)
    others = run(TwoWidths.parse({}), images(digits), executor=Workers(2), **about)
    first = prepare_run(
        TwoWidths.parse({}), images(digits), checkpoints=tmp_path, checkpoint_every=1, **about
    )
    for report in first.rounds():
        if report.round == 2:
            break
    resumed = run(TwoWidths.parse({}), images(digits), checkpoints=tmp_path, checkpoint_every=1, **about)
    for ran in (others, resumed):
        assert torch.equal(ran.servers[-1]["model"], whole.servers[-1]["model"])
        kept = zip(ran.clients[-1]["trained"], whole.clients[-1]["trained"], strict=True)
        assert all(torch.equal(one, other) for one, other in kept)
        assert ran.rounds[-1].values == whole.rounds[-1].values


def test_every_level_has_a_model_although_one_client_is_scored(digits):
    ran = run(TwoWidths.parse({}), images(digits), evaluate_clients=1)
    server = ran.servers[-1]
    models = ran.outcome().models
    assert sorted(models) == [0, 1]
    assert torch.equal(models[0], server["small"]) and torch.equal(models[1], server["model"])


def test_polls_count_in_the_traffic_of_every_level(digits):
    federation = suited("fedhen", images(digits))
    ran = run("fedhen", federation, sampling="easy_first", participation=0.5, rounds=2)
    for name in ("bytes_down", "bytes_up"):
        for report in ran.rounds:
            parts = [report.values[f"level/{name}/{level}"] for level in ("simple", "complex")]
            assert report.values["polls"] and all(parts) and sum(parts) == report.values[name]
