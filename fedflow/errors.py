"""The errors that fedflow raises on purpose, each one line that a user can act on."""

import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, TypeVar

V = TypeVar("V")

CLOSEST, LISTED = 5, 20  # names of a list that an error shows: the closest of a longer one
LONGEST = 200  # letters of a value that an error shows

_OURS = {  # our names and their names in other tools, as `bare` writes them
    "lr": "learningrate eta clientlr locallr stepsize",
    "clients": "numclients nclients nodes numusers nparties numpartitions client",
    "rounds": "numrounds nrounds globalrounds commrounds communicationrounds globalepochs round",
    "epochs": "localepochs numepochs nepochs epoch localep clientepochs",
    "steps": "localsteps numsteps localiterations iterations",
    "participation fraction": (
        "fraction fractionfit fractiontrain frac joinratio clientfraction samplefraction sampleratio "
        "participationrate"
    ),
    "batchsize": "batch bs localbs localbatchsize trainbatchsize",
    "optimizer": "optim localoptimizer optimiser",
    "method methods": "algorithm algo strategy aggregator",
    "model models name": "modelname network net architecture arch",
    "dataset data": "dataset datasets datasetname",
    "partition partitions scheme": "partitioner split",
    "alpha": "dirichletalpha beta concentration",
    "weightdecay": "wd l2 weightdecayrate",
    "seed seeds": "randomseed randomstate",
    "evaluateevery": "evalevery testevery evaluationinterval evalgap",
    "clipnorm": "gradclip maxgradnorm clip",
    "clusters groups": "numgroups numclusters nclusters k",
    "table": "csv tsv parquet dataframe",
    "folder": "imagefolder images",
    "path": "file filename datapath",
    "target": "label labelcolumn targetcolumn y",
}
COMMON = {theirs: tuple(ours.split()) for ours, others in _OURS.items() for theirs in others.split()}
SECTIONS = {  # settings that users look for in other sections
    "training": "lr epochs steps momentum batch_size weight_decay optimizer clip_norm",
    "run": "rounds participation evaluate_every",
    "partitions.NAME": "clients alpha",
    "grid": "seeds redraw",
    "engine": "workers device cohort width executor",
}


class Missing(Enum):
    """The value of a field that was not given."""

    MISSING = "missing"


MISSING = Missing.MISSING


class FedflowError(Exception):
    """Something a user can fix. The command line prints it as one line and exits with code 2."""


def returned(value: Any, kind: type[V], hook: str, wanted: str) -> V:
    """The ``value`` that a function of a plug-in returned; `FedflowError` names its ``hook`` for others."""
    if not isinstance(value, kind):
        raise FedflowError(f"{hook} must return {wanted}, not {type(value).__name__}")
    return value


class BadInput(FedflowError):
    """A field has a value that is not accepted: ``BadInput("method.mu", -1, "a number >= 0")``.

    ``guess`` is the value that was probably meant, if there is one. The value of a field that is required and
    was not given is `MISSING`.
    """

    def __init__(self, field: str, value: object, accepted: str, guess: str = "") -> None:
        self.field, self.value, self.accepted, self.guess = field, value, accepted, guess
        meant = f" (did you mean {guess!r}?)" if guess else ""
        if accepted == "text" and isinstance(value, int | float) and not isinstance(value, bool):
            accepted = f"text, in quotes: '{value}'"
        given = "missing" if value is MISSING else f"{_cut(value)} is not accepted"
        super().__init__(f"{field}: {given}{meant}; expected {accepted}")

    def renamed(self, field: str) -> "BadInput":
        """The same error for ``field``, as the user wrote it."""
        return BadInput(field, self.value, self.accepted, self.guess)

    def __reduce__(self) -> tuple:  # keeps its parts across process boundaries
        return BadInput, (self.field, self.value, self.accepted, self.guess)


class RoundFailed(FedflowError):
    """Too few clients of a round sent a finite update."""


class Unanswered(FedflowError):
    """Prefect's server is not responding, or responds with an error."""

    seen: ClassVar[bool] = False  # then Prefect would try for minutes to send its events at exit

    def __init__(self, error: BaseException) -> None:
        super().__init__(
            "the Prefect server is not responding; rerun the command to resume "
            f"(first restart the server, if you set PREFECT_API_URL): {reason(error)}"
        )


def _cut(value: object) -> str:
    """The value as Python writes it; long text is cut."""
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
    """True for an error of Prefect whose server is not responding, or fails.

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
    """Raise `Unanswered` if the Prefect server is not responding within this context."""
    try:
        yield
    except Exception as error:
        if not is_unanswered(error):
            raise
        raise Unanswered(error) from error


def bare(name: object) -> str:
    """A name without capitals and punctuation, to compare names."""
    return re.sub(r"[\W_]+", "", str(name).casefold())


def called(name: str, labels: Mapping[str, str]) -> str:
    """The one name in ``labels`` that is spelled like ``name``, or has such a label; else ``name``."""
    if name in labels:
        return name
    alike = [other for other, label in labels.items() if bare(name) in (bare(other), bare(label))]
    return alike[0] if len(alike) == 1 else name


def meant(value: object, names: Iterable[str]) -> str:
    """The name that is spelled like ``value``, or has that name in other tools; else ""."""
    spelled = {bare(text): name for name in names for text in (name.partition("(")[0], name)}
    word, function = bare(value), bare(str(value).partition("(")[0])
    words = (word, function, *COMMON.get(word, ()))
    return next((spelled[word] for word in words if word in spelled), "")


def unknown_name(
    field: str, value: object, names: Iterable[str], command: str = "", elsewhere: str = ""
) -> BadInput:
    """The error for an unknown name, with the name that was probably meant.

    A long list is reduced to the closest names; ``command`` prints all of them. ``elsewhere`` is the full
    name of a setting that belongs in another section.
    """
    if not (names := sorted(names)):
        return BadInput(field, value, "no name here, as there is nothing to set")
    if field.startswith("partition") and elsewhere.startswith("partition"):
        elsewhere = ""  # a parameter of another scheme
    spelled = dict(zip(map(bare, names), names))
    close = difflib.get_close_matches(bare(value), spelled, n=CLOSEST, cutoff=0)
    likely = difflib.get_close_matches(bare(value), close, n=CLOSEST)
    likely.sort(key=lambda word: sorted(word) != sorted(bare(value)))  # letters in another order come first
    guess = meant(value, names) or elsewhere or next((spelled[word] for word in likely), "")
    accepted = ", ".join(names)
    if len(names) > LISTED:
        first = [guess] if guess in names else []
        nearest = [*dict.fromkeys([*first, *(spelled[word] for word in close)])][:CLOSEST]
        rest = f"; `{command}` lists them" if command else ""
        accepted = f"{', '.join(nearest)} or {len(names) - len(nearest)} more{rest}"
    if command and (folder := _package(value)):
        return BadInput(field, value, f"an installed name: `pip install -e {folder}` installs this one")
    return BadInput(field, value, f"one of {accepted}", guess)


def _package(name: object) -> str:
    """The folder of the package that `fedflow new` made for this name, if it is in the working directory."""
    folders = (f"fedflow-{name}", ".") if re.fullmatch("[a-z][a-z0-9_]{0,99}", str(name)) else ()
    return next((folder for folder in folders if Path(folder, f"fedflow_{name}.py").is_file()), "")


def place(value: object) -> str:
    """The full name in params.yaml of a setting of this name, or of its name in other tools; else ""."""
    word = bare(value)
    full = {bare(name): f"{section}.{name}" for section, names in SECTIONS.items() for name in names.split()}
    return next((full[word] for word in (word, *COMMON.get(word, ())) if word in full), "")
