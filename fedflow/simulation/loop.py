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
from torch import Tensor

from fedflow.errors import FedflowError, RoundFailed, returned
from fedflow.local.client import TRAINED, check_diagnostic
from fedflow.methods.method import Message, Method, Passes, ServerState, draw
from fedflow.methods.protocols import Asynchronous, Cyclic, Onboarding, Phased, VariableEpochs
from fedflow.metrics.table import check_names
from fedflow.seeding import generator
from fedflow.simulation.checkpoint import drop_checkpoint, save_checkpoint
from fedflow.simulation.executors import balanced
from fedflow.simulation.extensions.extension import overriding
from fedflow.simulation.gathered import Gathered
from fedflow.simulation.job import ClientResult, OnboardingShard, Shard
from fedflow.simulation.messages import received_bytes
from fedflow.simulation.outcome import SERIES_CLIENTS, Outcome, RoundReport, RunFindings, reasons
from fedflow.simulation.returned import of_tensors, plain, planned
from fedflow.simulation.sampling import sample
from fedflow.simulation.scoring import Scoring
from fedflow.simulation.setup import RunSetup
from fedflow.simulation.summary import final_metrics, summarized
from fedflow.simulation.timing import Clock, Work, first_done
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
    def clock(self) -> Clock:
        return Clock(self.job.timing, self.job.seed, self.job.training, self.sizes)

    def rounds(self) -> Iterator[RoundReport]:
        """Every round in order; after a resume, earlier rounds come first (``replayed``)."""
        yield from (replace(past, replayed=True) for past in self.state.history)
        if self.state.onboarded is None:
            self.state.onboarded = self.onboard(range(self.clients))
            if self.state.onboarded:
                self._checkpoint()
        for t in range(len(self.state.history) + 1, self.settings.rounds + 1):
            if self.stopped:
                break
            started = time.perf_counter()
            report = self._round(t)
            if self._evaluated(t):
                self.scoring.evaluate(report)
            check_names(report.values)
            report.values = plain(report.values)
            self.state.history.append(report)
            report.seconds = time.perf_counter() - started
            if t == self.settings.rounds or self.stopped or t % self.settings.checkpoint_every == 0:
                self._checkpoint()
            report.seconds = time.perf_counter() - started
            yield report

    def _evaluated(self, t: int) -> bool:
        return t == self.settings.rounds or t % self.settings.evaluate_every == 0

    @property
    def stopped(self) -> str:
        """A sentence on the last round so far if it reached `run.stop_at`; else empty."""
        stop, t = self.settings.stop_at, self.done
        if stop is None or not t or not self._evaluated(t):
            return ""
        values = self.state.history[-1].values
        if not stop.reached(values):
            return ""
        where = f"round {t} of {self.settings.rounds}"
        return f"{where} reached run.stop_at: {stop.metric} {values[stop.metric]:.4g}, target {stop.value:g}"

    def outcome(self) -> Outcome:
        """Final scores of every client, on its own and on the complete test set, and the models served."""
        scores = self.scoring.final()
        outcome = Outcome(
            scores.among(self.federation.partition, self.clients),
            self.state.participations,
            final_metrics(self, scores),
            self.scoring.served_models(scores),
        )
        for extension in self.extensions:
            hook = f"{type(extension).__name__}.finish"
            outcome.add(returned(extension.finish(scores), RunFindings, hook, "RunFindings"))
        return outcome

    def forget(self) -> None:
        """Delete the checkpoint, when the run is finished and recorded."""
        if self.folder is not None:
            drop_checkpoint(self.folder)

    def onboard(self, clients: Sequence[int]) -> dict[str, int]:
        """Onboard clients before they take part; returns the bytes down and up, {} without an onboarding."""
        method, traffic = self.job.method, {"down": 0, "up": 0}
        if not isinstance(method, Onboarding) or not method.onboarding_phases():
            return {}
        for phase in range(method.onboarding_phases()):
            now = self.round(0, "turns", phase)
            turns = method.onboarding_turns(now, phase, self.state.server, clients)
            for turn, members in enumerate(turns):
                down, up = self._onboard_turn(method, phase, turn, [int(k) for k in members])
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
        path = self.job.path(None)
        answers = Gathered(self.executor.map(onboard_shard, self.job, shards, title), now, path)
        if answers.failures:
            k, reason = answers.failures[0]
            raise FedflowError(f"{title}: client {k} failed: {reason}")
        state.server = method.onboarding_aggregate(now, phase, state.server, answers)
        for sent in answers.sent:
            if sent.client < self.clients:
                state.store.put(sent.client, sent.keep)
        down = sum(sum(received_bytes(path, shard)) for shard in shards)
        return down, sum(sent.traffic for sent in answers.sent)

    def count_traffic(self, report: RoundReport, down: Mapping[int, int], up: Mapping[int, int]) -> None:
        """Add the bytes that crossed, by client, to the report."""
        report.values["bytes_down"] += sum(down.values())
        report.values["bytes_up"] += sum(up.values())
        for extension in self.extensions:
            extension.traffic(report, down, up)

    def _round(self, t: int) -> RoundReport:
        method = self.job.method
        before = self.state.history[-1].values if self.state.history else {}
        totals = {name: before.get(name, 0) for name in ("bytes_down", "bytes_up", "gradients", "updates")}
        values = {**totals, "clusters": before.get("clusters", 1), "clock": before.get("clock", 0.0)}
        report = RoundReport(t, values=values | {"idle": 0.0, "delay": 0.0})
        sent: list[ClientResult] = []
        for extension in self.extensions:
            extension.start_round(report, before)
        for extension in self.extensions:
            extension.poll(report)
        for cycle in range(method.cycles() if isinstance(method, Cyclic) else 1):
            sent += self._cycle(t, cycle, report)
        report.values |= summarized(sent)
        if sent:
            report.values["train_loss"] = float(np.mean([result.train_loss for result in sent]))
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
        reason = f"every client failed, and the server's state stays as it was ({why})"
        warnings.warn(f"{self.job.method.name}: round {report.round}: {reason}", stacklevel=4)

    def _cycle(self, t: int, cycle: int, report: RoundReport) -> list[ClientResult]:
        """One server step, added to the report; returns the results of its clients."""
        state, method = self.state, self.job.method
        works = self._works(t, cycle, report)
        cohort, now = sorted(works), self.round(t, "server", t, cycle, cycle=cycle)
        path = self.job.path(state.steps)
        alone = len(cohort) == 1 and self.clients > 1 and path.having("serve")
        others = [self._message(t, cycle, int(cohort[0] == 0))] if alone else []  # tell what all clients get
        received = path.serve({k: works[k].received for k in cohort}, (t, cycle), others)
        state.steps = path.state
        shards = [
            Shard(
                t,
                clients,
                *self.messages(clients, lambda k: received[k]),
                phase=Phased.of(method).phase(now),
                epochs=[works[k].epochs for k in clients],
                most=[works[k].most for k in clients],
                ahead=ahead,
                cycle=cycle,
                steps=path.for_workers,
                cohort=cohort if path.steps else (),
            )
            for clients, ahead in zip(
                balanced(cohort, self.sizes, self.executor.workers),
                chain(balanced(self._expected(t), self.sizes, self.executor.workers), repeat([])),
            )
        ]
        results = self.executor.map(train_shard, self.job, shards, f"round {t} · train")
        gathered = Gathered(results, now, path, received)
        if len(gathered.sent) < self.settings.min_cohort:
            why = f" ({reasons(dict(gathered.failures))})" if gathered.failures else ""
            raise RoundFailed(
                f"round {t}: {len(gathered.sent)} of {len(cohort)} clients succeeded, "
                f"run.min_cohort is {self.settings.min_cohort}{why}"
            )
        if gathered.sent:
            state.server, numbers, series = self._checked(method.aggregate(now, state.server, gathered))
            state.steps, of_steps = path.learn(now, gathered.sent, gathered.averaged)
            numbers |= of_steps
        else:
            state.server, numbers, series = Phased.of(method).without_updates(now, state.server), {}, {}
        for sent in gathered.sent:
            for extension in self.extensions:
                extension.trained(sent)
            if TRAINED not in state.store.first:
                sent.keep.pop(TRAINED, None)
            state.store.put(sent.client, sent.keep)
            state.participations[sent.client] += 1
        report.cohort += cohort
        report.values["participants"] = len(report.cohort)
        report.values["updates"] += len(gathered.sent)
        report.values["gradients"] += sum(work.gradients for work in works.values())
        report.failed |= dict(gathered.failures)
        down = dict[int, int]()
        for shard in shards:
            down |= zip(shard.clients, received_bytes(path, shard), strict=True)
        self.count_traffic(report, down, {sent.client: sent.traffic for sent in gathered.sent})
        report.values |= numbers
        report.series |= series
        for extension in self.extensions:
            extension.stepped(report, gathered.sent)
        # Without their vectors, which would stay in memory until the last cycle.
        return [replace(sent, vectors={}, keep={}) for sent in gathered.sent]

    def _checked(self, after: Any) -> tuple[ServerState, dict[str, float], dict[str, list[float]]]:
        """The state, numbers and series that `Method.aggregate` returned, by name of metric."""
        numbers: dict[str, float] = {}
        series: dict[str, list[float]] = {}
        try:
            state, reported = after
            for name, value in reported.items():
                check_diagnostic(name)
                if not getattr(value, "ndim", 0):
                    numbers[f"method/{name}"] = float(value)
                elif value.shape == (self.clients,):
                    series[f"method/{name}"] = [float(number) for number in value[:SERIES_CLIENTS].tolist()]
                else:
                    raise ValueError(f"{name!r} has shape {tuple(value.shape)}, not ({self.clients},)")
            return of_tensors(self.job.method.name, "aggregate", state), numbers, series
        except (TypeError, ValueError, AttributeError) as error:
            wanted = "the server's state and a dictionary of numbers, or arrays [N] of all clients"
            raise FedflowError(f"{self.job.method.name}.aggregate must return {wanted} ({error})") from error

    def _works(self, t: int, cycle: int, report: RoundReport) -> dict[int, Work]:
        """The finished work of this cycle, by client; adds its times to the report."""
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
        for extension in self.extensions:
            if (chosen := extension.cohort(t)) is not None:
                hook, wanted = f"{type(extension).__name__}.cohort", "chances [N] and a size, or None"
                return returned(chosen, tuple, hook, wanted)
        number = (t - 1) * (method.cycles() if isinstance(method, Cyclic) else 1) + cycle
        return sample(settings.sampling, settings.participation, self.sizes, self.job.seed, number)

    def _expected(self, t: int) -> list[int]:
        """The cohort of the next round, for GPUs; empty if it is not determined yet."""
        method, job = self.job.method, self.job
        chosen_late = type(method).plan is not Method.plan or isinstance(method, Asynchronous | Cyclic)
        if (
            chosen_late
            or len(overriding("cohort", self.extensions))
            or t == self.settings.rounds
            or not job.device.startswith("cuda")
        ):
            return []
        return [*map(int, draw(self.round(t, "cohort", t + 1).rng, *self._sample(t + 1, 0)))]

    def _stragglers(self, cohort: np.ndarray, t: int, cycle: int) -> dict[int, int]:
        if not self.job.training.stragglers:
            return {}
        return self.job.training.draw_stragglers(cohort, generator(self.job.seed, "stragglers", t, cycle))

    def _begin(self, t: int, cycle: int, k: int, clock: float, most: int | None = None) -> Work:
        """The work that client ``k`` starts at time ``clock``, of at most ``most`` epochs."""
        server, method, job = self.state.server, self.job.method, self.job
        now = self.round(t, "epochs", t, k, cycle=cycle)
        epochs = VariableEpochs.of(method).epochs(now, server, k)
        samples, batches = int(self.sizes[k]), job.training.batches(int(self.sizes[k]))
        streams = [usual if epochs is None else epochs for usual in method.streams(job.training).values()]
        loads = [job.training.workload(samples, n if most is None else min(n, most)) for n in streams]
        # Time is counted by step, however small its batch; gradients are counted by sample.
        work = method.work(now, server, sum(load.steps for load in loads) / batches, batches)
        passes = returned(work, Passes, f"{method.name}.work", "Passes")
        factor, evaluations = job.training.gradients, job.training.evaluations
        fits = len(streams) if passes.fits is None else passes.fits
        losses = passes.losses + evaluations * fits
        gradients = factor * passes.gradients + passes.inputs / samples
        ends = self.clock.ends(t, k, clock, gradients, losses)
        by_sample = method.work(now, server, sum(load.samples for load in loads) / samples, batches)
        count = round(by_sample.gradients * factor * samples + by_sample.inputs)
        return Work(k, t, ends, epochs, self._message(t, cycle, k), most, count)

    def _message(self, t: int, cycle: int, k: int) -> dict[str, Tensor]:
        """The message to client ``k``."""
        method, now = self.job.method, self.round(t, "broadcast", t, cycle, k, cycle=cycle)
        sent = method.broadcast(now, self.state.server, k)
        return returned(sent, dict, f"{method.name}.broadcast", "a dictionary of tensors")

    def _checkpoint(self) -> None:
        if self.folder is None:
            return
        tensors, facts = self.state.packed(self.federation.model.device)
        save_checkpoint(self.folder, tensors, facts | {"fingerprint": self.fingerprint})
        self.state.store.settle()
