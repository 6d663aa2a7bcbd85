"""A pytest plugin: files in the given order, their CPU seconds, the first failure, a limit of CPU seconds.

It reads the environment: MUTANTS_SAID is the file that it writes (JSON), MUTANTS_LIMIT the limit (0: none).
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT = float(os.environ.get("MUTANTS_LIMIT", "0"))
SAID = {"seconds": defaultdict(float), "failed": "", "cut": False}


def seconds() -> float:
    """CPU seconds of this process and of the children that it waited for."""
    return sum(os.times()[:4])


def pytest_configure(config: pytest.Config) -> None:
    import fedflow

    if not Path(fedflow.__file__).is_relative_to(config.invocation_params.dir):
        raise pytest.UsageError(f"tests would import {fedflow.__file__}, not the fedflow of this folder")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Restore the order of the command line, which a conftest.py may have changed."""
    order = {str((config.invocation_params.dir / arg).resolve()): i for i, arg in enumerate(config.args)}
    items.sort(key=lambda item: order.get(str(item.path), len(order)))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = seconds()
    yield
    SAID["seconds"][item.nodeid.partition("::")[0]] += seconds() - before
    if LIMIT and seconds() > LIMIT and not SAID["failed"]:
        SAID["cut"], item.session.shouldstop = True, f"{LIMIT:g} CPU seconds are over"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and not SAID["failed"]:
        SAID["failed"] = report.nodeid


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed and not SAID["failed"]:
        SAID["failed"] = report.nodeid


def pytest_unconfigure() -> None:
    if said := os.environ.get("MUTANTS_SAID"):
        Path(said).write_text(json.dumps(SAID))
