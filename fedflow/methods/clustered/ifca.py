"""IFCA: the server keeps k models; every client trains the one that fits its data best.

Source: Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning",
NeurIPS 2020, arXiv 2006.04088, Algorithm 1; code github.com/jichan3751/ifca.

Client: j = argmin_j F_k(theta_j) on its training data (lowest index on ties); option II trains theta_j,
option I sends the gradient at theta_j. Server: option II averages the models of each cluster (an empty
cluster keeps its model); option I: theta_j <- theta_j - gamma / D * sum of the members' gradients, and the
mean of their buffers. With weighting: samples, gradients count n_k times, and D is a number of samples.
With shared layers, theta_j is a body and a head: heads as above, the body with the whole cohort, or never.
*Reduces to* uniform FedAvg (option II) or FedSGD (option I) when k = 1.
*State*: server theta_1..theta_k; clients none. *Traffic*: k P down, 1 P and the cluster number up.
With shared layers, one body and k heads down, a head up, and the body too unless it is frozen.
With min_init_share, before the first round all starts, (restarts + 20) k models, down to all N clients, and a
loss of each up.
*Newcomer*: receives the k models, takes the argmin. *Differs from the paper in*: D is the size of the cohort
by default (the paper's m; equal under full participation).
*Ambiguous*: clients are tested with the model that fits their training data best, as in the authors' code for
FEMNIST; for MNIST and CIFAR that code uses the test data, which is optimistic (`ifca_as_published`). Several
starts run one after the other; they are compared by the losses of the cohort in the last round of each,
before it trains. With partial participation these are different clients for every start; full participation
makes it fair.
"""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.local_training import LocalTraining
from fedflow.local.samples import Batch
from fedflow.methods.averaging._averaging import weights
from fedflow.methods.clustered._multi_model import PRETRAINING, RANDOM_ASSIGNMENT, MultiModel, MultiModelState
from fedflow.methods.method import Cohort, Conditions, Next, Passes, Round
from fedflow.methods.registry import register
from fedflow.settings import option


@register("ifca", "IFCA")
class IFCA(MultiModel):
    chooses_on_test: ClassVar[bool] = False

    averaging: str = option(
        "model", "trained models (option II) or gradients (option I)", choices=("model", "gradient")
    )
    weighting: str = weights("uniform", "authors' code: uniform; n_k on FEMNIST")
    denominator: str = option(
        "cohort",
        "D of gradient averaging: all clients, the cohort, or the cluster's part of it",
        symbol="D",
        choices=("all", "cohort", "cluster"),
        source="Algorithm 1: all machines m",
    )
    server_lr: float = option(
        0.1, "step size of gradient averaging", symbol="gamma", gt=0, source="MNIST: 0.1"
    )

    def validate(self) -> None:
        super().validate()
        if self.averaging == "model":
            self.refuse_unused("with averaging: model", "denominator", "server_lr")

    def sent(self, part: str) -> str:
        """The name of a sent part; of its gradient, one that steps of updates compare with no message."""
        return part if self.averaging == "model" else f"{part}_gradient"

    def choose(self, client: Client) -> Tensor:
        """The cluster whose model has the lowest training loss, scalar int64."""
        return self.losses(client, client.received["models"]).argmin()

    def check(self, run: Conditions) -> None:
        super().check(run)
        if self.averaging == "gradient":
            run.training.need_no_adaptation(self.name, "whose averaging: gradient is over all samples")

    def streams(self, training: LocalTraining) -> dict[str, int]:
        """No batches are drawn if gradients are averaged from the first round."""
        return {} if self.averaging == "gradient" and not self.pretraining else super().streams(training)

    def work(self, now: Round, server: MultiModelState, epochs: float, steps: int) -> Passes:
        if self.phase(now) == PRETRAINING:
            return Passes(epochs, fits=1)
        tried = 1 if self.phase(now) == RANDOM_ASSIGNMENT else self.clusters
        if self.averaging == "gradient":
            return Passes(1, losses=tried, fits=0)
        return Passes(epochs, losses=tried, fits=1)

    def local(self, client: Client) -> Update:
        weight, received = self.weight(client), client.received
        if client.phase == PRETRAINING:
            return client.update(model=client.fit(start=received["model"]), weight=weight)
        losses = self.losses(client, received["models"])
        j, head = losses.argmin(), self.head(client.model)
        theta = torch.stack(self.whole(client, received["models"]))[j]

        def with_frozen_body(w: Tensor, batch: Batch) -> Tensor:
            return client.loss(torch.where(head.mask, w, theta), batch)

        if self.averaging == "gradient":
            g, after = client.full_pass(theta)
            sent = client.model.with_buffers(g, theta - after)
        elif self.shared == "frozen":
            w = client.fit(with_frozen_body, start=theta)
            sent = client.trained = torch.where(head.mask, w, theta)
        else:
            sent = client.fit(start=theta)
        if client.phase == RANDOM_ASSIGNMENT:
            j = received["number"]
        scalars = {"cluster": j} | ({"loss": losses.amin()} if self.restarts > 1 else {})
        update = client.update(weight=weight, group=j, scalars=scalars)
        update.vectors[self.sent("model")] = sent if self.shared == "none" else head.of(sent)
        if self.shared == "averaged":
            update.vectors[self.sent("body")] = head.outside(sent)
        return update

    def aggregate(self, now: Round, server: MultiModelState, cohort: Cohort) -> Next[MultiModelState]:
        if self.phase(now) == PRETRAINING:
            return self.pretrain(now, server, cohort.mean("model")), {}
        models, body = server.models.clone(), server.body
        n = now.sizes if self.weighting == "samples" else np.ones(now.clients)
        of_cohort = n[cohort.ids]
        totals = {"all": n.sum(), "cohort": of_cohort.sum()}

        head, buffers = self.head(now.model), torch.arange(now.model.size) >= now.model.parameters
        buffers = buffers.to(models.device)

        def moved(old: Tensor, mean: Tensor, members: np.ndarray, buffers: Tensor) -> Tensor:
            """``old`` after a step with the ``mean`` of its members' models or gradients."""
            if self.averaging == "model":
                return mean
            weight = members.sum()
            rate = float(self.server_lr * weight / totals.get(self.denominator, weight))
            return old - torch.where(buffers, mean, rate * mean)

        fixed, chosen = buffers if self.shared == "none" else head.of(buffers), sorted(set(cohort.groups))
        for j in chosen:
            mean = cohort.mean(self.sent("model"), group=j)
            models[j] = moved(models[j], mean, of_cohort[np.array(cohort.groups) == j], fixed)
        if body is not None and self.shared == "averaged":
            body = moved(body, cohort.mean(self.sent("body")), of_cohort, head.outside(buffers))
        loss = cohort.scalars("loss").mean() if self.restarts > 1 else np.nan
        after = self.proceed(now, replace(server, models=models, body=body), loss)
        return after, {"empty_clusters": self.clusters - len(chosen)}

    def model_for(self, client: Client) -> tuple[Tensor, Tensor | None]:
        if client.phase == PRETRAINING:
            return client.received["model"], torch.tensor(0)
        models = self.whole(client, client.received["models"])
        if self.chooses_on_test:
            return torch.stack(models), None
        j = self.choose(client)
        return models[int(j)], j
