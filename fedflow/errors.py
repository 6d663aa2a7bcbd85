"""The errors that fedflow raises on purpose, each one line that a user can act on."""

import difflib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

LONGEST = 200  # letters of a value that an error shows


class FedflowError(Exception):
    """Something a user can fix. The command line prints it as one line and exits with code 2."""


class BadInput(FedflowError):
    """A field has a value that is not accepted: ``BadInput("method.mu", -1, "a number >= 0")``.

    ``guess`` is what was probably meant, if it can be told.
    """

    def __init__(self, field: str, value: object, accepted: str, guess: str = "") -> None:
        meant = f" (did you mean {guess!r}?)" if guess else ""
        super().__init__(f"{field}: {_cut(value)} is not accepted{meant}; expected {accepted}")
        self.field, self.value, self.accepted, self.guess = field, value, accepted, guess

    def renamed(self, field: str) -> "BadInput":
        """The same error for ``field``, as the user wrote it."""
        return BadInput(field, self.value, self.accepted, self.guess)

    def __reduce__(self) -> tuple:  # keeps its parts across process boundaries
        return type(self), (self.field, self.value, self.accepted, self.guess)


class RoundFailed(FedflowError):
    """Too few clients of a round sent an update that is finite."""


class Unanswered(FedflowError):
    """Prefect's server does not answer, or answers with an error."""

    seen: ClassVar[bool] = False  # then Prefect would try for minutes to send its events when a process ends

    def __init__(self, error: BaseException) -> None:
        super().__init__(
            "Prefect's server does not answer; the same command resumes "
            f"(first start the server again, if you set PREFECT_API_URL): {reason(error)}"
        )


def extra(name: str) -> str:
    """The command that installs an optional part of fedflow.

    It names the repository: on package indexes, the name fedflow belongs to another project.
    """
    return f"`pip install -e '.[{name}]'` in fedflow's repository"


def _cut(value: object) -> str:
    """The value as Python writes it, without the end of a long text."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # too many digits or levels for Python to write
        text = f"a {type(value).__name__} that is too long"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def reason(error: BaseException) -> str:
    """The first line of an error's text, or the name of its type."""
    if isinstance(error, KeyError):
        return f"has no {error}"
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def is_unanswered(error: BaseException) -> bool:
    """Whether Prefect says that its server does not answer, or fails.

    Prefect raises a plain `RuntimeError` at first, and errors of httpx later.
    """
    if isinstance(error, RuntimeError) and "reach API" in str(error):
        return True
    httpx = sys.modules.get("httpx")  # which Prefect has imported
    if httpx is None:
        return False
    failed = isinstance(error, httpx.HTTPStatusError) and error.response.status_code >= 500
    return failed or isinstance(error, httpx.TransportError)


@contextmanager
def asking_prefect() -> Iterator[None]:
    """Raise `Unanswered` if Prefect's server does not answer within this context."""
    try:
        yield
    except Exception as error:
        if not is_unanswered(error):
            raise
        raise Unanswered(error) from error


def unknown_name(field: str, value: object, known: Iterable[str]) -> BadInput:
    """The error for a name that is not registered, with the closest registered one first."""
    names = sorted(known)
    close = difflib.get_close_matches(str(value), names, n=1)
    return BadInput(field, value, f"one of {', '.join(names)}", close[0] if close else "")
