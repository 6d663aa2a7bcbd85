"""Curricula: orders of samples and clients, growing prefixes, pools of clients and their losses."""

from collections.abc import Sequence

from fedflow.finished.cells import Methods, of_clients
from fedflow.finished.contents import hashes
from fedflow.finished.features import series
from fedflow.finished.run import Run
from fedflow.finished.variants import defaults
from fedflow.local.extensions.curriculum import Curriculum
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS
from fedflow.naming import flat, say
from fedflow.pictures.accuracy import measured
from fedflow.pictures.curriculum import COLUMNS, SECTIONS, alike, by_order, growth, polled, pool, prefix
from fedflow.report.blocks import Block, Drawing, Heading, Panels
from fedflow.report.compared import ComparedPartition, leading, not_drawn, partitioned
from fedflow.simulation.extensions.client_curriculum import POLLED
from fedflow.simulation.outcome import SERIES_CLIENTS

LEAD = """Runs that differ in the order of one curriculum only are drawn together, in the same colors for
every method: curriculum (easy first), anti (hard first), random (one random order) and vanilla (no
curriculum). Difficulty by round is the mean over the samples of the round's clients before they train: of
their loss, or of the score that sorts them. A growing prefix is the share of a client's samples, in order of
difficulty, that its local steps are drawn from (gray line: the pacing). A pool is the set of clients that
may take part in a round. The loss of a client is the mean over its training samples by which the server
ranked it; it is drawn until the next ranking."""


@partitioned("curricula", "Curricula", LEAD)
def section(p: ComparedPartition) -> list[Block]:
    drawn = [*_orders(p), *_prefixes(p), *_pools(p), *_polled(p)]
    return [Heading(p.name), *not_drawn(p.methods), Panels(drawn)] if drawn else []


def hosts(methods: Methods, section: str) -> list[tuple[str, dict[str, list[Run]]]]:
    """Name, and runs by order, of variants that differ in the order of one curriculum only."""
    variants = list(methods.values())
    settings = [flat(r[0].params) | hashes(r[0].metrics) for r in variants]
    groups = [{order: variants[at[0]] for order, at in orders.items()} for orders in alike(settings, section)]
    return list(zip(_names(groups, section), groups))


def _orders(p: ComparedPartition) -> list[Drawing]:
    """Accuracy by round of every host, then difficulty, for orders of samples, then of clients."""
    return [
        Drawing(f"{name}{words}: {drawn[0]} by round", drawn[1].svg)
        for part, (section, words) in enumerate(zip(SECTIONS, ("", ", orders of clients")))
        for i, kind in enumerate(COLUMNS)
        for number, (name, orders) in enumerate(hosts(leading(p.methods), section))
        if (drawn := by_order(orders, kind, f"{p.key}-o{part}{i}-{number}"))
    ]


def _prefixes(p: ComparedPartition) -> list[Drawing]:
    """A growing prefix for every distinct pacing, for a client of median size."""
    drawn: dict[tuple, tuple[Curriculum, list[str]]] = {}
    for run, *_ in leading(p.methods).values():
        if run.params["training"].get("curriculum"):
            training = LocalTraining.parse(run.params["training"])
            if growing := growth(training, run.clients["samples"].to_numpy()):
                key = (_pacing(growing[0]), *growing[1:])
                drawn.setdefault(key, (growing[0], []))[1].append(run.label)
    return [
        Drawing(
            f"Growing prefix: {words}",
            prefix(curriculum, passes, samples, f"{p.key}-prefix{number}").svg,
            f"Of a client with {samples:,} samples, the median. {', '.join(sorted(labels))}.",
        )
        for number, ((words, passes, samples), (curriculum, labels)) in enumerate(drawn.items())
    ]


def _pools(p: ComparedPartition) -> list[Drawing]:
    """The pool by round of all variants with a client curriculum."""
    pools = {variant: runs for variant, runs in leading(p.methods).items() if measured(runs, "pool")}
    drawn = pool(pools, p.colors, f"{p.key}-pool").svg if pools else None
    return [Drawing("Pool of clients by round", drawn)] if drawn else []


def _polled(p: ComparedPartition) -> list[Drawing]:
    """The losses by which clients are ranked, of one run of every variant with such losses."""
    drawings = []
    for number, runs in enumerate(leading(p.methods).values()):
        run = next((run for run in runs if len(series(run))), runs[0])
        losses, metrics = series(run)[series(run)["name"] == POLLED], run.metrics
        if len(losses):
            shown = min(metrics["clients"], SERIES_CLIENTS)
            drawn = polled(losses, shown, metrics["rounds"], f"{p.key}-polled{number}").svg
            drawings.append(Drawing(f"{run.label}: loss of every client by round", drawn, of_clients(run)))
    return drawings


def _pacing(curriculum: Curriculum) -> str:
    """The pacing in words."""
    more = [curriculum.mode.replace("_", " ")] if curriculum.mode != "queue" else []
    more += [f"at least {curriculum.least}"] if curriculum.least > 1 else []
    return ", ".join([curriculum.pacing, f"a {curriculum.a:g}", f"b {curriculum.b:g}", *more])


def _names(hosts: Sequence[dict[str, list[Run]]], section: str) -> list[str]:
    """The label of each host's method, with non-default settings in which hosts of one method differ."""
    first = [next(iter(orders.values()))[0].params for orders in hosts]  # not vanilla
    settings, names = list(map(flat, first)), []
    for params, values in zip(first, settings):
        method, usual = values["method.name"], flat(defaults(params))
        alike = [other for other in settings if other["method.name"] == method]
        differs = [name for name in values if any(other.get(name) != values[name] for other in alike)]
        skip, within = f"{section}.order", f"{section.partition('.')[2]} "
        more = [name for name in differs if name != skip and values[name] != usual.get(name)]
        words = [say(name, values[name]).removeprefix(within) for name in more]
        names.append(", ".join([METHODS[method].label if method in METHODS else method, *words]))
    return names
