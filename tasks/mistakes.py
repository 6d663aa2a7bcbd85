"""The start of a flow: wrong parameters are not retried, and are one line in the log."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect import get_client
from prefect.context import FlowRunContext

from fedflow.config import PARAMS, Loaded, load_params
from fedflow.errors import BadInput, FedflowError
from fedflow.project.arguments import check_arguments
from tasks.outages import be_patient


@contextmanager
def checking() -> Iterator[None]:
    """Check the parameters of this flow: `BadInput` ends it without the retries that it may have."""
    be_patient()
    try:
        yield
    except BadInput:
        context = FlowRunContext.get()
        run = context.flow_run if isinstance(context, FlowRunContext) else None
        if run is not None and run.empirical_policy.retries:
            final = run.empirical_policy.model_copy(update={"retries": 0})
            with get_client(sync_client=True) as client:
                client.update_flow_run(run.id, empirical_policy=final)
        raise


def checked(settings: list[str] | None, root: str, **given: Any) -> Loaded:
    """The parameters of a project, after a check of all parameters of the flow."""
    check_arguments(**given, settings=settings, root=root)
    return load_params(Path(root) / PARAMS, [] if settings is None else settings)


def _one_line(record: logging.LogRecord) -> bool:
    """Shorten the record of an error that needs no traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, FedflowError):
        record.msg, record.args, record.exc_info = str(error), (), None
    return True


logging.getLogger("prefect.flow_runs").addFilter(_one_line)
