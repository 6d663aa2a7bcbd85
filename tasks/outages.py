"""Outages of the Prefect server: runs wait for it, and end with one line if it does not return."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.context import SettingsContext, get_settings_context
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, get_current_settings

from fedflow.errors import Unanswered, asking_prefect
from fedflow.project.terminal import say

TRIES = 9  # after 2, 4, 8, ... s: 17 minutes
AGAIN = 60.0  # seconds after which a failed request counts as another outage
_chosen = "max_retries" in get_current_settings().client.model_fields_set  # by the user


def be_patient() -> None:
    """Let the requests of this flow wait for a server that is not responding, and print that they wait.

    Requests of Prefect's services at the end of a process do not wait.
    """
    if not _chosen:
        _try(TRIES)
    client = logging.getLogger("prefect.client")
    if not any(isinstance(waiting, _Waiting) for waiting in client.filters):
        client.addFilter(_Waiting())
    client.setLevel(logging.DEBUG)


@contextmanager
def asking() -> Iterator[None]:
    """Raise `Unanswered` if the Prefect server does not return; later requests are not repeated.

    In a flow run that a worker started, later requests also wait: its retry needs the server.
    """
    try:
        with asking_prefect():
            yield
    except (Unanswered, KeyboardInterrupt):
        if "PREFECT__FLOW_RUN_ID" not in os.environ:
            _try(0)
        raise


def _try(times: int) -> None:
    """Repeat failed requests up to ``times``, from now on in this thread."""
    context = get_settings_context()
    settings = context.settings.copy_with_update(updates={PREFECT_CLIENT_MAX_RETRIES: times})
    SettingsContext(profile=context.profile, settings=settings).__enter__()


class _Waiting(logging.Filter):
    """Prints once per outage that requests wait; Prefect's client logs every attempt."""

    last = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        if "attempt" in record.getMessage():
            tries = PREFECT_CLIENT_MAX_RETRIES.value()
            if time.monotonic() - self.last > AGAIN + 2**tries:
                seconds = 2 ** (tries + 1) - 2
                patience = f"{seconds / 60:.0f} min" if seconds > 100 else f"{seconds} s"
                wait = f"waiting up to {patience} (PREFECT_CLIENT_MAX_RETRIES)"
                say(f"the Prefect server is not responding: {wait}")
            self.last = time.monotonic()
        return record.levelno > logging.DEBUG
