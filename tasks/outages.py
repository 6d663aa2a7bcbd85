"""A Prefect server that is away: runs wait for it, and end in one line if it stays away."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from fedflow.errors import Unanswered, asking_prefect
from fedflow.terminal import say

AGAIN = 60.0  # seconds after which another failed request is called another outage
_given_up = ExitStack()


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
            _given_up.enter_context(temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}))
        raise


class _Waiting(logging.Filter):
    """Says once per outage that requests wait, of which Prefect's client logs every attempt."""

    last = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        if "attempt" in record.getMessage():
            tries = PREFECT_CLIENT_MAX_RETRIES.value()
            if time.monotonic() - self.last > AGAIN + 2**tries:
                minutes = f"{(2 ** (tries + 1) - 2) / 60:.0f} min ({PREFECT_CLIENT_MAX_RETRIES.name})"
                say(f"Prefect's server does not answer: waiting up to {minutes}")
            self.last = time.monotonic()
        return record.levelno > logging.DEBUG


def announce() -> None:
    """Say when requests wait for Prefect's server."""
    client = logging.getLogger("prefect.client")
    if not any(isinstance(each, _Waiting) for each in client.filters):
        client.addFilter(_Waiting())
    client.setLevel(logging.DEBUG)
