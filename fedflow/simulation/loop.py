"""The round loop: plan, broadcast, train, aggregate, evaluate, checkpoint. No Prefect, no MLflow."""

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, repeat, takewhile
from typing import Any

import numpy as np

from fedflow.errors import FedflowError, RoundFailed
from fedflow.local.client import check_diagnostic
from fedflow.local.pacing import EXPERT
from fedflow.methods.method import Message, Method, ServerState, draw
from fedflow.methods.protocols import Asynchronous, Cyclic, Onboarding, Phased, Recording, VariableEpochs
from fedflow.metrics.table import level_metric
from fedflow.seeding import generator
from fedflow.simulation.checkpoint import drop_checkpoint, save_checkpoint
from fedflow.simulation.evaluation import Scores
from fedflow.simulation.events import Work, first_done
from fedflow.simulation.executors import balanced
from fedflow.simulation.gathered import Gathered
from fedflow.simulation.job import ClientResult, OnboardingShard, Shard
from fedflow.simulation.messages import received_bytes
from fedflow.simulation.outcome import POLLED, SERIES_CLIENTS, Outcome, RoundReport, reasons
from fedflow.simulation.returned import of_tensors, planned
from fedflow.simulation.sampling import sample, take_turn
from fedflow.simulation.scoring import Scoring
from fedflow.simulation.setup import RunSetup
from fedflow.simulation.summary import final_metrics, summarized
from fedflow.simulation.timing import LOSS
from fedflow.simulation.updates.path import UpdatePath
from fedflow.simulation.worker import onboard_shard, train_shard


class Simulation(RunSetup):
    """Iterate over `rounds`, then call `outcome`.

    Checkpoints are in ``checkpoints/<fingerprint>``; if one exists there, the run resumes from it.
    A round in which every client fails leaves the state as it is. Raises `RoundFailed` after 1 / R such
    rounds in a row (at least two), or if fewer than ``min_cohort`` clients of a round succeed.
    """

    @cached_property
    def scoring(self) -> Scoring:
        return Scoring(self)

    @cached_property
    def _times(self) -> dict[int, np.ndarray]:
        """Times of a download, an epoch and an upload, by client; drawn when needed."""
        return {}

    def rounds(self) -> Iterator[RoundReport]:
        """Every round in order; after a resume, earlier rounds come first (``replayed``)."""
        yield from (replace(past, replayed=True) for past in self.state.history)
        if self.state.onboarded is None:
            self.state.onboarded = self.onboard(range(self.clients))
            if self.state.onboarded:
                self._checkpoint()
        for t in range(len(self.state.history) + 1, self.settings.rounds + 1):
            started = time.perf_counter()
            report = self._round(t)
            last = t == self.settings.rounds
            if last or t % self.settings.evaluate_every == 0:
                self.scoring.evaluate(report)
            self.state.history.append(report)
            report.seconds = time.perf_counter() - started
            if last or t % self.settings.checkpoint_every == 0:
                self._checkpoint()
            report.seconds = time.perf_counter() - started
            yield report

    def outcome(self) -> Outcome:
        """Final scores of every client, on its own and on the complete test set, and the models served."""
        scores = self.scoring.final()
        compared = self.scoring.dissimilarity()
        newcomers = self._newcomer_scores()
        return Outcome(
            scores.among(self.federation.partition, self.clients),
            self.state.participations,
            final_metrics(self, self.scoring, scores, newcomers),
            self.scoring.served_models(scores),
            newcomers,
            compared,
            self.scoring.stable_cluster_ids,
            self.scoring.sweep(),
            self.scoring.recorded(),
            self.state.generated,
            self.scoring.generation.last() if self.scoring.generation else None,
        )

    def forget(self) -> None:
        """Delete the checkpoint, when the run is finished and recorded."""
        if self.folder is not None:
            drop_checkpoint(self.folder)

    def onboard(self, clients: Sequence[int]) -> dict[str, int]:
        """Onboard clients before they take part; returns the bytes down and up.

        {} if the method has no onboarding.
        """
        method, traffic = self.job.method, {"down": 0, "up": 0}
        if not isinstance(method, Onboarding) or not method.onboarding_phases():
            return {}
        for phase in range(method.onboarding_phases()):
            now = self.round(0, "turns", phase)
            turns = method.onboarding_turns(now, phase, self.state.server, clients)
            for turn, asked in enumerate(turns):
                down, up = self._onboard_turn(method, phase, turn, [int(k) for k in asked])
                traffic["down"] += down
                traffic["up"] += up
        return traffic

    def _onboard_turn(self, method: Onboarding, phase: int, turn: int, clients: list[int]) -> tuple[int, int]:
        """One turn of the onboarding; returns the bytes down and up."""
        state, now = self.state, self.round(0, "introduction", phase, *([turn] if turn else []))

        def send(k: int) -> Message:
            return method.onboarding_broadcast(self.round(0, "onboarding", phase, k), phase, state.server, k)

        shards = [
            OnboardingShard(0, share, *self.messages(share, send), step=phase)
            for share in balanced(clients, self.federation.partition.sizes, self.executor.workers)
        ]
        title = f"onboarding {phase + 1} of {method.onboarding_phases()}"
        path = UpdatePath(self.job.method)
        answers = Gathered(self.executor.map(onboard_shard, self.job, shards, title), now, path)
        if answers.failures:
            k, reason = answers.failures[0]
            raise FedflowError(f"{title}: client {k} failed: {reason}")
        state.server = method.onboarding_aggregate(now, phase, state.server, answers)
        for sent in answers.sent:
            if sent.client < self.clients:
                state.store.put(sent.client, sent.keep)
        down = sum(sum(received_bytes(self.job, shard)) for shard in shards)
        return down, sum(sent.traffic for sent in answers.sent)

    def _newcomer_scores(self) -> Scores | None:
        """Scores of the newcomers after their onboarding: as served, and after one local training."""
        newcomers = range(self.clients, len(self.federation.partition.sizes))
        if not newcomers:
            return None
        self.onboard(newcomers)
        return self.scoring.scores("newcomers", self.settings.rounds, newcomers, tune=True)

    def _round(self, t: int) -> RoundReport:
        method = self.job.method
        before = self.state.history[-1].values if self.state.history else {}
        totals = {name: before.get(name, 0) for name in ("bytes_down", "bytes_up", "gradients", "updates")}
        if self.leveled:
            by_level = [
                level_metric(level, name) for level in self.levels for name in ("bytes_down", "bytes_up")
            ]
            totals |= {name: before.get(name, 0) for name in by_level}
        values = {**totals, "clusters": before.get("clusters", 1), "clock": before.get("clock", 0.0)}
        report = RoundReport(t, values=values | {"idle": 0.0, "delay": 0.0})
        losses: list[float] = []
        self.state.means.start_round()
        if self.turns:
            self._enter_pool(t, report, before)
        for cycle in range(method.cycles() if isinstance(method, Cyclic) else 1):
            losses += self._cycle(t, cycle, report)
        if losses:
            report.values["train_loss"] = float(np.mean(losses))
        else:
            self._lost(report)
        return report

    def _lost(self, report: RoundReport) -> None:
        """Warn of a round without any update; raise `RoundFailed` after too many of them in a row."""
        share, why = self.settings.participation, reasons(report.failed)
        lost = 1 + sum(1 for _ in takewhile(lambda past: past.lost, reversed(self.state.history)))
        if lost >= max(2, math.ceil(1 / share - 1e-9)):  # no single round ends a run
            raise RoundFailed(
                f"round {report.round}: every client failed in {lost} rounds in a row, the limit at "
                f"run.participation {share:g} ({why})"
            )
        method = self.job.method.name
        reason = f"every client failed, and the server's state stays as it was ({why})"
        warnings.warn(f"{method}: round {report.round}: {reason}", stacklevel=4)

    def _enter_pool(self, t: int, report: RoundReport, before: dict[str, float]) -> None:
        """The pool of the client curriculum in this round; all clients are ranked for a new one."""
        turn, curriculum, values = self.turns[t - 1], self.settings.client_curriculum, report.values
        assert curriculum is not None
        values |= {name: before.get(name, 0) for name in ("polls", "poll_bytes")} | {"pool": turn.clients}
        if turn.start:
            return
        losses = None
        if curriculum.polls:
            losses, down, up = self.scoring.poll(t)
            values["polls"] += 1
            values["poll_bytes"] += int(down.sum()) + up * self.clients
            for level, own in ({"": range(self.clients)} | self.levels).items():
                values[level_metric(level, "bytes_down")] += int(down[own].sum())
                values[level_metric(level, "bytes_up")] += up * len(own)
            values["clock"] += max(self._time_of_poll(t, k) for k in range(self.clients))
            report.series[POLLED] = losses[:SERIES_CLIENTS].tolist()
        elif curriculum.scores:
            losses = self._expert_losses()
        ranked = curriculum.ranked(losses, self.clients, self.job.seed, turn.pool)
        self.state.pool = np.sort(ranked[: turn.clients])

    def _expert_losses(self) -> np.ndarray:
        """An expert's mean loss on the training samples of every client [N]."""
        losses = self.federation.inputs[EXPERT].double().cpu().numpy()
        return np.array([losses[self.federation.partition.train(k)].mean() for k in range(self.clients)])

    def _cycle(self, t: int, cycle: int, report: RoundReport) -> list[float]:
        """One server step, added to the report; returns the training losses of its clients."""
        state, method = self.state, self.job.method
        works = self._works(t, cycle, report)
        cohort, now = sorted(works), self.round(t, "server", t, cycle, cycle=cycle)
        shards = [
            Shard(
                t,
                clients,
                *self.messages(clients, lambda k: works[k].received),
                phase=Phased.of(method).phase(now),
                epochs=[works[k].epochs for k in clients],
                most=[works[k].most for k in clients],
                ahead=ahead,
                cycle=cycle,
                steps=state.steps,
            )
            for clients, ahead in zip(
                balanced(cohort, self.sizes, self.executor.workers),
                chain(balanced(self._expected(t), self.sizes, self.executor.workers), repeat([])),
            )
        ]
        path = UpdatePath(method, self.job.updates, self.job.seed, state.steps)
        gathered = Gathered(self.executor.map(train_shard, self.job, shards, f"round {t} · train"), now, path)
        if len(gathered.sent) < self.settings.min_cohort:
            raise RoundFailed(
                f"round {t}: {len(gathered.sent)} of {len(cohort)} clients succeeded, "
                f"run.min_cohort is {self.settings.min_cohort} ({reasons(dict(gathered.failures))})"
            )
        if gathered.sent:
            state.server, numbers, series = self._checked(method.aggregate(now, state.server, gathered))
            state.steps, of_steps = path.learn(now, gathered.sent, gathered.averaged)
            numbers |= of_steps
        else:
            state.server, numbers, series = Phased.of(method).without_updates(now, state.server), {}, {}
        for sent in gathered.sent:
            state.means.take(sent.client, sent.keep)
            state.store.put(sent.client, sent.keep)
            state.participations[sent.client] += 1
        report.cohort += cohort
        report.values["participants"] = len(report.cohort)
        report.values["updates"] += len(gathered.sent)
        report.values["gradients"] += sum(work.gradients for work in works.values())
        report.failed |= dict(gathered.failures)
        received = dict[int, int]()
        for shard in shards:
            received |= zip(shard.clients, received_bytes(self.job, shard), strict=True)
        report.values["bytes_down"] += sum(received.values())
        report.values["bytes_up"] += sum(sent.traffic for sent in gathered.sent)
        if self.leveled:
            self._add_by_level(report.values, received, gathered.sent)
        report.values |= numbers
        report.series |= series
        self._add_series(report, gathered)
        report.values |= summarized(gathered.sent)
        return [sent.train_loss for sent in gathered.sent]

    def _add_series(self, report: RoundReport, gathered: Gathered) -> None:
        """Add the diagnostics of this cycle's clients in `Recording.series`; NaN outside the cohort."""
        for name in Recording.of(self.job.method).series:
            values = report.series.setdefault(
                f"client/{name}", [float("nan")] * min(self.clients, SERIES_CLIENTS)
            )
            for sent in gathered.sent:
                if sent.client < len(values):
                    values[sent.client] = sent.reported.get(name, float("nan"))

    def _add_by_level(
        self, values: dict[str, float], received: Mapping[int, int], sent: list[ClientResult]
    ) -> None:
        """Add the traffic of every level, down as ``received`` by client, and its mean training loss."""
        losses = dict[str, list[float]]()
        for client, down in received.items():
            values[level_metric(self.level(client), "bytes_down")] += down
        for result in sent:
            level = self.level(result.client)
            values[level_metric(level, "bytes_up")] += result.traffic
            losses.setdefault(level, []).append(result.train_loss)
        for level, own in losses.items():
            values[level_metric(level, "train_loss")] = float(np.mean(own))

    def _checked(self, after: Any) -> tuple[ServerState, dict[str, float], dict[str, list[float]]]:
        """What `Method.aggregate` returned: the state, its numbers and its series, by name of metric."""
        numbers: dict[str, float] = {}
        series: dict[str, list[float]] = {}
        try:
            state, reported = after
            for name, value in reported.items():
                check_diagnostic(name)
                if not getattr(value, "ndim", 0):
                    numbers[f"method/{name}"] = float(value)
                elif value.shape == (self.clients,):
                    series[f"method/{name}"] = [float(one) for one in value[:SERIES_CLIENTS].tolist()]
                else:
                    raise ValueError(f"{name!r} has shape {tuple(value.shape)}, not ({self.clients},)")
            return of_tensors(self.job.method.name, "aggregate", state), numbers, series
        except (TypeError, ValueError, AttributeError) as error:
            wanted = "the server's state and a dictionary of numbers, or arrays [N] of all clients"
            raise FedflowError(f"{self.job.method.name}.aggregate must return {wanted} ({error})") from error

    def _works(self, t: int, cycle: int, report: RoundReport) -> dict[int, Work]:
        """The finished work of this cycle, by client; its times are added to the report."""
        state, method, size, values = self.state, self.job.method, self.cohort_size, report.values
        now = self.round(t, "cohort", t, *([cycle] if cycle else []), cycle=cycle)
        begin = partial(self._begin, t, cycle)
        slots = min(method.clients_in_flight(size), self.clients) if isinstance(method, Asynchronous) else 0
        if slots:
            done, state.busy = first_done(
                state.busy, values["clock"], size, slots, self.clients, now.rng, begin
            )
        else:
            chances, size = self._sample(t, cycle)
            cohort, state.server = planned(
                method.name, method.plan(now, state.server, chances, size), self.clients
            )
            stragglers = self._stragglers(cohort, t, cycle)
            dropped = stragglers if self.job.training.drop_stragglers else {}
            done = [begin(int(k), values["clock"], stragglers.get(k)) for k in cohort if k not in dropped]
        values["clock"] = max(work.ends for work in done)
        if not slots:
            values["idle"] += float(np.mean([values["clock"] - work.ends for work in done]))
        values["delay"] = float(np.mean([t - work.begun for work in done]))
        return {work.client: work for work in done}

    def _sample(self, t: int, cycle: int) -> tuple[np.ndarray, int]:
        """The chances [N] and the size of the cohort of this cycle."""
        settings, method = self.settings, self.job.method
        if self.turns:
            turn = self.turns[t - 1]
            return take_turn(self.state.pool, self.job.seed, turn.pool, (turn.start, turn.end), self.clients)
        number = (t - 1) * (method.cycles() if isinstance(method, Cyclic) else 1) + cycle
        return sample(settings.sampling, settings.participation, self.sizes, self.job.seed, number)

    def _expected(self, t: int) -> list[int]:
        """The cohort of the next round, for GPUs; empty where it is not known yet."""
        method, job = self.job.method, self.job
        chosen_late = type(method).plan is not Method.plan or isinstance(method, Asynchronous | Cyclic)
        if chosen_late or self.turns or t == self.settings.rounds or not job.device.startswith("cuda"):
            return []
        return [*map(int, draw(self.round(t, "cohort", t + 1).rng, *self._sample(t + 1, 0)))]

    def _stragglers(self, cohort: np.ndarray, t: int, cycle: int) -> dict[int, int]:
        """The stragglers of a cohort, and the epochs that each has time for."""
        if not self.job.training.stragglers:
            return {}
        return self.job.training.draw_stragglers(cohort, generator(self.job.seed, "stragglers", t, cycle))

    def _begin(self, t: int, cycle: int, k: int, clock: float, most: int | None = None) -> Work:
        """The work that client ``k`` starts at time ``clock``, of at most ``most`` epochs."""
        server, method, job = self.state.server, self.job.method, self.job
        now = self.round(t, "epochs", t, k, cycle=cycle)
        epochs = VariableEpochs.of(method).epochs(now, server, k)
        samples, batches = int(self.sizes[k]), job.training.batches(int(self.sizes[k]))
        usual = [usual if epochs is None else epochs for usual in method.streams(job.training).values()]
        own = usual if most is None else [min(each, most) for each in usual]
        loads = [job.training.workload(samples, each) for each in own]
        down, epoch, up = self._times_of(t, k, batches)
        # Time is counted by step, however small its batch; gradients are counted by sample.
        passes = method.work(now, server, sum(load.steps for load in loads) / batches, batches)
        factor, evaluations = job.training.gradients, job.training.evaluations
        fits = len(usual) if passes.fits is None else passes.fits
        losses = passes.losses + evaluations * fits
        gradients = factor * passes.gradients + passes.inputs / samples
        ends = clock + float(down + (gradients + LOSS * losses) * epoch + up)
        by_sample = method.work(now, server, sum(load.samples for load in loads) / samples, batches)
        count = round(by_sample.gradients * factor * samples + by_sample.inputs)
        now = self.round(t, "broadcast", t, cycle, k, cycle=cycle)
        return Work(k, t, ends, epochs, method.broadcast(now, server, k), most, count)

    def _times_of(self, t: int, k: int, steps: int) -> np.ndarray:
        """Times [3] of client ``k``: a download, an epoch of ``steps`` local steps, and an upload."""
        if k not in self._times or not self.job.timing.steady:
            self._times[k] = self.job.timing.times(self.job.seed, k, steps, t)
        return self._times[k]

    def _time_of_poll(self, t: int, k: int) -> float:
        """How long client ``k`` takes for a download, its losses, and an upload."""
        down, epoch, up = self._times_of(t, k, self.job.training.batches(int(self.sizes[k])))
        return float(down + LOSS * epoch + up)

    def _checkpoint(self) -> None:
        if self.folder is None:
            return
        tensors, facts = self.state.packed(self.federation.model.device)
        save_checkpoint(self.folder, tensors, facts | {"fingerprint": self.fingerprint})
        self.state.store.settle()
