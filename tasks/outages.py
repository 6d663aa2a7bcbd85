"""A Prefect server that is away: runs wait for it, and end in one line if it stays away."""

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
AGAIN = 60.0  # seconds after which another failed request is called another outage
_chosen = "max_retries" in get_current_settings().client.model_fields_set  # by the user


def be_patient() -> None:
    """Let the requests of this flow wait for a server that is away, and say when they do.

    Not those of Prefect's services, which send what is left when a process ends.
    """
    if not _chosen:
        _try(TRIES)
    client = logging.getLogger("prefect.client")
    if not any(isinstance(each, _Waiting) for each in client.filters):
        client.addFilter(_Waiting())
    client.setLevel(logging.DEBUG)


@contextmanager
def asking() -> Iterator[None]:
    """Raise `Unanswered` if Prefect's server stays away, and then ask it without further attempts.

    In a flow run that a worker started, further requests wait as long: its retry needs the server.
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
    """Says once per outage that requests wait, of which Prefect's client logs every attempt."""

    last = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        if "attempt" in record.getMessage():
            tries = PREFECT_CLIENT_MAX_RETRIES.value()
            if time.monotonic() - self.last > AGAIN + 2**tries:
                seconds = 2 ** (tries + 1) - 2
                patience = f"{seconds / 60:.0f} min" if seconds > 100 else f"{seconds} s"
                say(
                    f"Prefect's server does not answer: waiting up to {patience} (PREFECT_CLIENT_MAX_RETRIES)"
                )
            self.last = time.monotonic()
        return record.levelno > logging.DEBUG
