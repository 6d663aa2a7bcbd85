"""One Prefect task is one worker's shard: of the clients in one round, or of the parts of a procedure."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import torch
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

from fedflow.errors import BadInput, FedflowError, is_unanswered, reason
from fedflow.project.distribution import extra
from fedflow.project.terminal import say
from fedflow.simulation.executors import Executor, Inline, Share, Work, end_with_parent
from tasks.contents import Carrier, Lacking, send, with_contents
from tasks.gpu import OneGpu, gpu_in_turn
from tasks.outages import asking

if TYPE_CHECKING:  # worker processes import this file and need no params.yaml
    from fedflow.config import EngineSettings

CONNECT_TIMEOUT = 10.0  # seconds in which the address of a cluster must answer
LOST_WORKERS = 3  # replacements of a broken worker pool in one round
LONG = 30.0  # seconds on threads after which ``auto`` continues on processes, which start in about five


@task(
    name="shard",
    task_run_name="{title} · worker {worker} · {content}",
    retries=2,
    # An error such as missing data would recur.
    retry_condition_fn=lambda task, run, state: (
        not isinstance(state.result(raise_on_failure=False), FedflowError)
    ),
    cache_policy=NO_CACHE,
    persist_result=False,
    log_prints=False,
)
def run_shard(
    work: Callable, job: Work, shard: Share, title: str, worker: int, content: str, in_turn: bool = False
) -> Any:
    """``work(job, shard)``: safe to retry, because it has no side effects.

    ``in_turn`` waits until the GPU of this machine is free.
    """
    # Small networks are slow when threads share a core; the setting applies to the calling thread only.
    torch.set_num_threads(1)
    with gpu_in_turn() if in_turn else nullcontext():
        return work(job, shard)


def executor_for(engine: "EngineSettings") -> AbstractContextManager[Executor]:
    """The executor that ``engine`` of params.yaml names; `OneGpu` for ``auto`` and threads on a GPU."""
    if engine.executor == "inline":
        return nullcontext(Inline())
    from fedflow.stages.experiment import pick_device

    on_gpus = pick_device(engine.device) == "cuda"
    if on_gpus and engine.executor in ("auto", "threads"):
        if (count := torch.cuda.device_count()) > 1:
            say(f"engine.executor {engine.executor}: trains on 1 of {count} GPUs; dask trains on all of them")
        return nullcontext(OneGpu())
    return PrefectExecutor(engine.executor, engine.workers, engine.address, on_gpus)


class PrefectExecutor:
    """Runs shards as Prefect tasks on threads, processes, Dask or Ray, inside a flow.

    A worker that dies breaks its pool: the pool is replaced and only the lost shards run again. Dask and Ray
    give the shards of a dead worker to another one, and fail only if one shard kills several workers.

    With an ``address`` the cluster decides how many shards train at once: a Dask worker has one thread, and
    Ray one GPU per shard. A local Dask cluster that trains ``on_gpus``, of which the machine has several, has
    one worker for each, whatever ``workers`` is. Otherwise shards on a GPU take turns.

    ``auto`` starts on threads. A run that has computed there for `LONG` seconds is expected to last, and
    continues on processes, which do not wait for each other's Python; results are the same. Should a process
    die, it returns to threads.
    """

    def __init__(
        self, kind: str = "threads", workers: int = 2, address: str | None = None, on_gpus: bool = False
    ) -> None:
        self.kind, self.workers = "threads" if kind == "auto" else kind, workers
        self._chooses, self._left = kind == "auto" and workers > 1, LONG
        self.address = address if kind in ("dask", "ray") else None
        self._environments: list[dict[str, str]] = []  # of the workers of a local Dask cluster
        if kind == "dask" and address is None:
            with self._extra():
                from tasks.dask import environments

            self._environments = environments(workers, on_gpus)
            self.workers = len(self._environments)
        self._in_turn = self.address is None and not any(self._environments)
        self._runner: TaskRunner | None = None

    def __enter__(self) -> Self:
        with self._reaching(OSError, ValueError):  # an address may be malformed, too
            self._check_reachable()
            self._runner = self._new_runner().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._runner is not None:
            self._runner.__exit__(*error)

    def map(
        self, work: Callable[[Any, Any], Any], job: Work, shards: Sequence[Share], title: str
    ) -> list[Any]:
        if self._chooses and self._left < 0 and self.kind == "threads":
            say(f"{title}: continuing on {self.workers} processes, because the run is long")
            self._restart("processes")
        started = time.monotonic()
        try:
            return self._map(work, job, shards, title)
        finally:
            self._left -= time.monotonic() - started

    @asking()
    def _map(
        self, work: Callable[[Any, Any], Any], job: Work, shards: Sequence[Share], title: str
    ) -> list[Any]:
        results: dict[int, Any] = {}
        deaths = 0
        while deaths <= LOST_WORKERS:
            missing = [i for i in range(len(shards)) if i not in results]
            ready = partial(with_contents, self._carrier.here, work) if self.address else work
            futures = {i: self._submit(ready, job, shards[i], title, i + 1) for i in missing}
            if self.kind == "dask":
                futures = self._merged(futures)
            made, lost = self._results(futures, title)
            lacking = [result for result in made.values() if isinstance(result, Lacking)]
            if not (lost or lacking):
                return [(results | made)[i] for i in range(len(shards))]
            if self.kind != "dask":  # whose sums were merged with those that are missing
                results |= {i: result for i, result in made.items() if not isinstance(result, Lacking)}
            if lost or self._send(lacking, title):
                deaths += 1
                self._replace(title)
        raise FedflowError(f"{title}: workers died {1 + LOST_WORKERS} times in a row, perhaps out of memory")

    def _results(self, futures: dict[int, Any], title: str) -> tuple[dict[int, Any], bool]:
        """The results of shards, and whether some are lost."""
        results, lost = dict[int, Any](), False
        for i, future in futures.items():
            try:
                results[i] = future.result()
            except self._lost:
                lost = True
            except (RuntimeError, FileNotFoundError) as error:
                # Prefect's certificates, a file without a name, are on the driver's machine only.
                unreachable = is_unanswered(error) or getattr(error, "filename", "") is None
                if self.address is None or not unreachable:
                    raise
                raise FedflowError(
                    f"{title}: a worker failed: {reason(error)}; start a Prefect server that all workers "
                    "reach and name it with PREFECT_API_URL (docs/clusters.md)"
                ) from error
        return results, lost

    def _replace(self, title: str) -> None:
        """Replace a pool that lost a worker."""
        kind = "threads" if self._chooses else self.kind
        if self._chooses:
            say(f"{title}: a process died; continuing on threads")
            self._chooses = False
        self._restart(kind)

    def _send(self, lacking: list[Lacking], title: str) -> bool:
        """Send contents to the machines that lack them; whether a worker was lost."""
        carrier = self._carrier(self._runner)
        try:
            for stored in dict.fromkeys(stored for answer in lacking for stored in answer.contents):
                say(f"{title}: sending {stored.path} to workers that lack it")
                send(stored, lacking, carrier)
        except self._lost:
            return True
        return False

    @property
    def _carrier(self) -> type[Carrier]:
        if self.kind == "ray":
            from tasks.ray import RayCarrier

            return RayCarrier
        from tasks.dask import DaskCarrier

        return DaskCarrier

    def _restart(self, kind: str) -> None:
        self.__exit__(None, None, None)
        self.kind = kind
        self.__enter__()

    def _submit(self, work: Callable, job: Work, shard: Share, title: str, worker: int) -> Any:
        assert self._runner is not None
        gpu = job.device.startswith("cuda")
        parameters = {
            "work": work,
            "job": job,
            "shard": shard,
            "title": title,
            "worker": worker,
            "content": shard.content,
            "in_turn": gpu and self._in_turn,
        }
        with self._reaching(OSError), self._on_gpu() if gpu else nullcontext():
            return self._runner.submit(run_shard.with_options(tags=["gpu"]) if gpu else run_shard, parameters)

    def _merged(self, futures: dict[int, Any]) -> dict[int, Any]:
        """The same results, with the sums of all of them in the first one."""
        from tasks.dask import merged_on_workers

        shards = [future.wrapped_future for future in futures.values()]
        return dict(zip(futures, merged_on_workers(shards), strict=True))

    def _on_gpu(self) -> AbstractContextManager[Any]:
        """Let a cluster give every shard its own GPU."""
        if self.kind != "ray":
            return nullcontext()
        from prefect_ray.context import remote_options

        return remote_options(num_gpus=1, max_calls=0)  # a persistent process keeps its data on the GPU

    @cached_property
    def _lost(self) -> tuple[type[BaseException], ...]:
        """Raised instead of the result of a shard whose worker, or whole cluster, is lost."""
        if self.kind == "dask":
            from distributed import CancelledError, KilledWorker

            return KilledWorker, CancelledError
        if self.kind == "ray":
            from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, WorkerCrashedError

            return WorkerCrashedError, NodeDiedError, ObjectLostError, OutOfMemoryError
        return (BrokenProcessPool,)

    def _check_reachable(self) -> None:
        """Raise OSError early if no cluster listens at the address: Ray would retry for minutes."""
        address = self.address or ""
        where = urlsplit(address if "//" in address else f"//{address}")
        if where.port is not None:
            socket.create_connection((where.hostname, where.port), CONNECT_TIMEOUT).close()

    @contextmanager
    def _reaching(self, *failures: type[Exception]) -> Iterator[None]:
        """Report in one line that no cluster answers, if one of these is raised."""
        try:
            yield
        except failures as error:
            if self.address is None:
                raise
            accepted = f"the address of a {self.kind} cluster that answers ({reason(error)})"
            raise BadInput("engine.address", self.address, accepted) from error

    def _new_runner(self) -> TaskRunner:
        if self.kind == "threads":
            return ThreadPoolTaskRunner(max_workers=self.workers)
        if self.kind == "processes":
            return ProcessPoolTaskRunner(max_workers=self.workers, initializer=end_with_parent)
        with self._extra():
            if self.kind == "dask":
                from prefect_dask import DaskTaskRunner

                local: dict[str, Any] = {} if self.address else {"environments": self._environments}
                return DaskTaskRunner(
                    address=self.address,
                    cluster_class="tasks.dask.local_cluster" if local else None,
                    cluster_kwargs=local,
                    client_kwargs={"direct_to_workers": True},  # results do not pass through the scheduler
                )
            from prefect_ray import RayTaskRunner

            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            return RayTaskRunner(
                address=self.address,
                init_kwargs={} if self.address else {"num_cpus": self.workers, "include_dashboard": False},
            )

    @contextmanager
    def _extra(self) -> Iterator[None]:
        """Report in one line that the packages of an executor are not installed."""
        try:
            yield
        except ImportError as error:
            raise FedflowError(f"engine.executor {self.kind} needs an extra: {extra(self.kind)}") from error
