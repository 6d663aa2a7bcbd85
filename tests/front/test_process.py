"""`fedflow.run` and the state of its process: threads, random generators, torch settings."""

import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from command import one_line_error
from test_run import FEW, SMALL, own, two_layers
from torch import nn

import fedflow as ff
from fedflow.errors import BadInput
from fedflow.front import runner
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.models import describe


def test_threads_are_as_before() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        ff.run(own(), ff.iid(clients=2), **SMALL | {"rounds": 1})
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def drawing() -> nn.Module:
    """A network whose maker draws from all global generators."""
    random.random(), np.random.rand()  # noqa: NPY002
    return two_layers()


def test_processs_in_threads_are_those_of_one_thread() -> None:
    def final(seed: int) -> dict[str, Any]:
        return ff.run(own(), ff.iid(clients=3), seed=seed, **SMALL).metrics

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(final, range(4))) == [final(seed) for seed in range(4)]


def apart(preloaded: Path, function: str, *arguments: object) -> None:
    """Call a function of this file in a process that no library of earlier tests has threads in."""
    code = f"import sys, test_process; test_process.{function}(*sys.argv[1:])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [str(preloaded / "python"), "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_process_that_is_forked_during_a_run_does_not_wait_for_it(preloaded: Path) -> None:
    apart(preloaded, "fork_during_a_run")


def forked() -> None:
    ff.run(own(), ff.iid(clients=3), **SMALL)


def fork_during_a_run() -> None:
    active, ended = Event(), Event()

    def run() -> None:
        with runner._alone():
            active.set()
            ended.wait(60)

    thread = Thread(target=run)
    thread.start()
    active.wait(60)
    child = multiprocessing.get_context("fork").Process(target=forked)
    child.start()
    child.join(60)
    ended.set()
    thread.join()
    assert child.exitcode == 0


@pytest.mark.parametrize(
    "setting",
    [
        torch.no_grad,
        torch.inference_mode,
        partial(torch.autocast, "cpu", dtype=torch.bfloat16),
        partial(torch.device, "meta"),
    ],
)
def test_what_torch_does_here_changes_no_run(setting: Callable[[], Any]) -> None:
    expected = ff.run(own(), ff.iid(clients=3), **SMALL).metrics
    with setting():
        assert ff.run(own(), ff.iid(clients=3), **SMALL).metrics == expected


def test_what_torch_is_set_to_changes_no_run() -> None:
    expected = ff.run(own(), ff.iid(clients=3), **SMALL).metrics
    torch.set_default_dtype(torch.float64), torch.set_float32_matmul_precision("medium")
    try:
        assert ff.run(own(), ff.iid(clients=3), **SMALL).metrics == expected
        assert (torch.get_default_dtype(), torch.get_float32_matmul_precision()) == (torch.float64, "medium")
    finally:
        torch.set_default_dtype(torch.float32), torch.set_float32_matmul_precision("highest")


def test_new_switches_of_tf32_change_no_run_and_are_as_before(preloaded: Path) -> None:
    apart(preloaded, "set_new_switches")


def switches() -> list[Any]:
    backends, cudnn = torch.backends, torch.backends.cudnn
    values = [each.fp32_precision for each in (backends, cudnn, cudnn.conv, cudnn.rnn, backends.cuda.matmul)]
    return [*values, cudnn.deterministic]


def set_new_switches() -> None:
    class Watched(FedAvg):
        def local(self, client: Any) -> Any:
            assert "tf32" not in switches()
            return super().local(client)

    before, cudnn = switches(), torch.backends.cudnn
    expected = ff.run(own(), ff.iid(clients=3), Watched, **SMALL).metrics
    assert switches() == before
    for switch in (torch.backends, cudnn, cudnn.conv, torch.backends.cuda.matmul):
        switch.fp32_precision = "tf32"
        changed = switches()
        assert ff.run(own(), ff.iid(clients=3), Watched, **SMALL).metrics == expected
        assert switches() == changed
        switch.fp32_precision = "none"


def test_a_method_that_draws_is_reproducible(preloaded: Path) -> None:
    apart(preloaded, "draw_in_a_method")


def draw_in_a_method() -> None:
    class Noisy(FedAvg):
        def local(self, client: Any) -> Any:
            drawn = torch.randn(()) + np.random.rand() + random.random()  # noqa: NPY002
            return client.update(model=client.received["model"] + drawn, weight=self.weight(client))

    def loss(before: int, seed: int) -> Any:
        random.seed(before), np.random.seed(before), torch.manual_seed(before)  # noqa: NPY002
        return ff.run(own(), ff.iid(clients=3), Noisy, seed=seed, **SMALL)["loss"]

    assert loss(1, 0) == loss(2, 0) != loss(2, 1)


def states() -> list[Any]:
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # noqa: NPY002


def test_generators_of_the_caller_are_as_before(tmp_path: Path, preloaded: Path) -> None:
    apart(preloaded, "draw_nothing", tmp_path)


def draw_nothing(folder: str) -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    before = states()
    data = own()
    first = ff.run(data, ff.iid(clients=3), model=drawing, **SMALL)
    assert states() == before
    with one_line_error("model: 'int' .* a function that returns", BadInput):
        ff.run(data, ff.iid(clients=3), model=lambda: drawing() and 3, **SMALL)
    assert states() == before
    named = ff.run(data, [range(0, 30), range(30, 60)], "scaffold", **SMALL | {"progress": True})
    ff.run("digits", ff.dirichlet(**FEW), record=folder, **SMALL)
    (
        first.plot(),
        first.model(0),
        ff.compare(first, named).plot(),
        repr(first),
        first._repr_html_(),
        describe(),
    )
    assert states() == before
    random.seed(2), np.random.seed(2), torch.manual_seed(2)  # noqa: NPY002
    assert ff.run(data, ff.iid(clients=3), model=drawing, **SMALL).metrics == first.metrics
