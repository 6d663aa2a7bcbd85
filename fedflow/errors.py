"""The errors that fedflow raises on purpose, each one line that a user can act on."""

import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

CLOSEST, LISTED = 5, 20  # names of a list that an error shows: the closest of a longer one
LONGEST = 200  # letters of a value that an error shows

_OURS = {  # `bare` names of ours, and of other tools
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
    "optimizer": "optim localoptimizer",
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
}
COMMON = {theirs: tuple(ours.split()) for ours, others in _OURS.items() for theirs in others.split()}
PLACES = {  # where params.yaml has a name that another section is asked for
    "lr": "training.lr",
    "epochs": "training.epochs",
    "steps": "training.steps",
    "momentum": "training.momentum",
    "batchsize": "training.batch_size",
    "weightdecay": "training.weight_decay",
    "optimizer": "training.optimizer",
    "clipnorm": "training.clip_norm",
    "rounds": "run.rounds",
    "participation": "run.participation",
    "evaluateevery": "run.evaluate_every",
    "clients": "partitions.NAME.clients",
    "alpha": "partitions.NAME.alpha",
    "seeds": "grid.seeds",
    "workers": "engine.workers",
    "device": "engine.device",
    "cohort": "engine.cohort",
    "width": "engine.width",
    "executor": "engine.executor",
}


_AMERICAN = (  # British -> American, in the middle of words too
    (r"is(?=e|ing|ation)", "iz"),
    (r"ys(?=e|ing)", "yz"),
    (r"our", "or"),
    (r"tred", "tered"),
    (r"tre(?=s?(?![a-z]))", "ter"),
    (r"ll(?=ed|ing)", "l"),
    (r"grey", "gray"),
)


class FedflowError(Exception):
    """Something a user can fix. The command line prints it as one line and exits with code 2."""


class BadInput(FedflowError):
    """A field has a value that is not accepted: ``BadInput("method.mu", -1, "a number >= 0")``.

    ``guess`` is what was probably meant, if it can be told.
    """

    def __init__(self, field: str, value: object, accepted: str, guess: str = "") -> None:
        self.field, self.value, self.accepted, self.guess = field, value, accepted, guess
        super().__init__(self._line())

    def _line(self) -> str:
        meant = f" (did you mean {self.guess!r}?)" if self.guess else ""
        return f"{self.field}: {_cut(self.value)} is not accepted{meant}; expected {self.accepted}"

    def renamed(self, field: str) -> "BadInput":
        """The same error for ``field``, as the user wrote it."""
        return type(self)(field, self.value, self.accepted, self.guess)

    def __reduce__(self) -> tuple:  # keeps its parts across process boundaries
        return type(self), (self.field, self.value, self.accepted, self.guess)


class Respelled(BadInput):
    """An old name of which only the spelling has changed: ``guess`` is the name now."""

    def _line(self) -> str:
        return f"{self.field}: {_cut(self.value)} is now {self.guess!r}"


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


def bare(name: object) -> str:
    """A name without capitals and punctuation: names that agree in this are taken for one another."""
    return re.sub(r"[\W_]+", "", str(name).casefold())


def respelled(value: object, known: Iterable[str]) -> str:
    """The known name whose British spelling is ``value``, or "" if there is none."""
    own = _american(value)
    if own == bare(value):  # American already
        return ""
    return next((name for name in known if _american(name) == own and bare(name) != bare(value)), "")


def _american(name: object) -> str:
    """The name as `bare` writes it, the same for both spellings: not always a word, as in "noize"."""
    text = str(name).casefold()
    for british, american in _AMERICAN:
        text = re.sub(british, american, text)
    return bare(text)


def called(name: str, labels: Mapping[str, str]) -> str:
    """The name in ``labels`` that is spelled like ``name``, or has a label that is; else ``name``.

    A name that fits two of them is left as it is.
    """
    if name in labels:
        return name
    found = [known for known, label in labels.items() if bare(name) in (bare(known), bare(label))]
    return found[0] if len(found) == 1 else name


def meant(value: object, known: Iterable[str]) -> str:
    """The known name that is spelled like ``value``, or has that name in other tools; else ""."""
    names = {bare(text): name for name in known for text in (name.partition("(")[0], name)}
    own, function = bare(value), bare(str(value).partition("(")[0])
    words = (own, function, *COMMON.get(own, ()), bare(respelled(value, names.values()) or value))
    return next((names[word] for word in words if word in names), "")


def unknown_name(
    field: str, value: object, known: Iterable[str], command: str = "", elsewhere: str = ""
) -> BadInput:
    """The error for a name that is not known, with what was probably meant first.

    A long list is reduced to the closest names; ``command`` prints all of them. ``elsewhere`` is the place of
    a setting that belongs in another section.
    """
    names = sorted(known)
    if now := respelled(value, names):
        return Respelled(field, value, now, now)
    spelled = dict(zip(map(bare, names), names))
    close = difflib.get_close_matches(bare(value), spelled, n=CLOSEST, cutoff=0)
    likely = difflib.get_close_matches(bare(value), close, n=1)
    guess = meant(value, names) or elsewhere or next((spelled[word] for word in likely), "")
    accepted = ", ".join(names)
    if len(names) > LISTED:
        first = [guess] if guess in names else []
        nearest = [*dict.fromkeys([*first, *(spelled[word] for word in close)])][:CLOSEST]
        rest = f"; `{command}` lists them" if command else ""
        accepted = f"{', '.join(nearest)} or {len(names) - len(nearest)} more{rest}"
    return BadInput(field, value, f"one of {accepted}", guess)


def place(value: object) -> str:
    """The place in params.yaml of a setting of this name, or of its name in other tools; else ""."""
    own = bare(value)
    words = (own, *COMMON.get(own, ()), respelled(value, PLACES) or own)
    return next((PLACES[word] for word in words if word in PLACES), "")
