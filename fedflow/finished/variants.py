"""Variants: the runs of a method on a partition with the same settings and the same data.

Only runs of one variant are averaged, over their seeds, which may draw the partition too. The variant that
params.yaml defines (in the folder ``<seed>``) has the name of the method; other variants are named after
their differences from it, or from the method's runs on another partition. Where no run at all has the
settings of params.yaml, as in a first trial with ``--set``, the settings with most runs have the name.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, get_args

from fedflow.choice import PARAMETERS, Choice
from fedflow.config import CentralParams
from fedflow.data import DatasetParams
from fedflow.finished.contents import hashes
from fedflow.finished.run import Run
from fedflow.local.central_training import CentralTraining
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS
from fedflow.naming import flat, say, text
from fedflow.partition import PartitionParams
from fedflow.project.digest import digest
from fedflow.settings import Settings, explain, hints
from fedflow.simulation.settings import RunSettings

LENGTH, DIGITS = 40, 4  # letters of the differences in a label, and of the digest at its end
PLACES = ("partition", "data")  # sections in which runs of one method differ by partition
HOST = "method.host.name"  # the method that another one wraps


def named(runs: Sequence[Run]) -> list[Run]:
    """``runs`` with ``variant`` and ``label``; of two with equal variant and seed, the one in ``<seed>``."""
    labeled, plain = [], {run.method: run for run in runs if _is_plain(run)}
    base_of = plain or _most_used(runs)
    for _, group in groupby(runs, key=lambda run: (run.partition, run.method)):
        variants: dict[tuple, dict[int, Run]] = {}
        for run in sorted(group, key=lambda run: (_identity(run), run.seed, run.folder.name)):
            seeds = variants.setdefault(_identity(run), {})
            if run.seed in seeds:
                seeds[run.seed] = replace(seeds[run.seed], repeated=run.folder.name)
            else:
                seeds[run.seed] = run
        fits = _is_plain if plain else lambda run: _everywhere(run) == _everywhere(base_of[run.method])
        usual = max(variants.values(), key=lambda seeds: (sum(map(fits, seeds.values())), len(seeds)))
        base = next(iter(usual.values()))
        elsewhere, taken = not any(map(fits, usual.values())), set[str]()
        if elsewhere and not plain:  # settings that differ by partition, such as networks, are no variants
            elsewhere = _everywhere(base) in _rivals(runs, base_of[base.method])
        for seeds in variants.values():
            run = next(iter(seeds.values()))
            variant, label = _without_plain(run, base_of.get(run.method)) if elsewhere else _names(run, base)
            if variant in taken:  # the same settings on other data
                data = ", ".join(say(name, value[:8]) for name, value in hashes(run.metrics).items())
                variant, label = f"{variant} · {data}", f"{label} · {data}"
            taken.add(variant)
            labeled += [replace(run, variant=variant, label=label) for run in seeds.values()]
    return sorted(_distinct(labeled), key=lambda run: (run.partition, run.method, run.variant, run.seed))


def _distinct(runs: Sequence[Run]) -> list[Run]:
    """``runs`` with the entry's name in labels that another entry on their partition has as well."""
    sharing: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        sharing.setdefault((run.partition, run.label), set()).add(run.method)
    return [
        replace(run, label=f"{run.label} · {run.method}")
        if len(sharing[run.partition, run.label]) > 1 and run.method != run.params["method"]["name"]
        else run
        for run in runs
    ]


def _identity(run: Run) -> tuple[str, ...]:
    """The settings and data that averaged runs share."""
    return (run.settings, *hashes(run.metrics).values())


def _everywhere(run: Run, *others: str) -> str:
    """The settings of a run except ``others`` and those that differ by partition."""
    return digest({name: value for name, value in run.params.items() if name not in (*PLACES, *others)})


def _most_used(runs: Sequence[Run]) -> dict[str, Run]:
    """A run of every method with the settings that most of its runs have, or among equals most methods."""
    by_method = Counter(map(_everywhere, runs))
    shared_by = Counter(_everywhere(run, "method") for run in runs)

    def use(run: Run) -> tuple[int, int, str, str]:
        mine, shared = _everywhere(run), _everywhere(run, "method")
        return by_method[mine], shared_by[shared], shared, mine

    return {run.method: run for run in sorted(runs, key=use)}


def _rivals(runs: Sequence[Run], base: Run) -> set[str]:
    """The settings of the method's runs on partitions that have the settings of ``base`` too."""
    settings = [(run.partition, _everywhere(run)) for run in runs if run.method == base.method]
    homes = {partition for partition, name in settings if name == _everywhere(base)}
    return {name for partition, name in settings if partition in homes}


def _is_plain(run: Run) -> bool:
    return run.folder.name == str(run.seed)


def _without_plain(run: Run, base: Run | None) -> tuple[str, str]:
    """The variant and label of a run without a plain one on its partition; ``base`` is elsewhere, or None."""
    if base is None:
        return f"{run.method} · {run.settings[:DIGITS]}", f"{_label(run)} · {run.settings[:DIGITS]}"
    there = {name: run.params[name] for name in PLACES}
    return _names(run, replace(base, params=base.params | there, metrics=base.metrics | hashes(run.metrics)))


def _names(run: Run, base: Run) -> tuple[str, str]:
    """The variant and label of a run, from its method and its differences from ``base``."""
    label = _label(run)
    if _identity(run) == _identity(base):
        return run.method, label
    of_base, of_run = hashes(base.metrics), hashes(run.metrics)
    differs = {name: value[:8] for name, value in of_run.items() if of_base.get(name, value) != value}
    wrapped, usual = {}, flat(defaults(run.params))
    mine, theirs = flat(run.params), flat(base.params)
    if mine.get(HOST) != theirs.get(HOST):  # compare hyperparameters of another host with its defaults
        wrapped = {HOST: mine[HOST]}  # the label has it already
        inside = HOST.removesuffix("name")
        theirs = {name: v for name, v in theirs.items() if not name.startswith(inside)} | wrapped
    changed = differences(mine, theirs, usual)
    divided = any(name.startswith(("partition.", "data.")) for name in changed)  # says more than a hash
    differs = changed if divided else differs | changed
    short = _shortened([say(*item) for item in differs.items()], run.settings)
    full = ", ".join(f"{name} {text(value)}" for name, value in (wrapped | differs).items())
    if not full:  # they differ in settings that results do not have, such as fields of other versions
        short = full = run.settings[:DIGITS]
    return f"{run.method} · {full}", f"{label} · {short}" if short else label


def differences(
    mine: Mapping[str, Any], theirs: Mapping[str, Any], usual: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of ``mine`` that differ, by name; one that only one side has is compared with its default.

    A mapping that only ``mine`` has, with all defaults, is {}; a mapping that only ``theirs`` has is null.
    """
    nulls = tuple(f"{name}." for name, value in mine.items() if value is None)
    changed: dict[str, Any] = {}
    for name in sorted({*mine, *theirs}):
        default = usual.get(name)
        if name in mine:
            became_null = mine[name] is None and _below(name, theirs)
            if became_null or mine[name] != theirs.get(name, default):
                changed[name] = mine[name]
        elif inner := _below(name, mine):  # a mapping here, one value there
            if all(mine[field] == usual.get(field) for field in inner):
                changed[name] = {}
        elif theirs[name] not in (None, default) and not name.startswith(nulls):
            changed[name] = None
    return changed


def _below(name: str, settings: Mapping[str, Any]) -> list[str]:
    """The names of settings within the mapping ``name``."""
    return [inner for inner in settings if inner.startswith(f"{name}.")]


def _label(run: Run) -> str:
    """The method's name, with a host other than the default unless the entry has another name."""
    label, host = run.metrics["method_label"], flat(run.params).get(HOST, "")
    if host == flat(defaults(run.params)).get(HOST, "") or run.method != run.params["method"]["name"]:
        return label
    return f"{label}, host {getattr(METHODS.get(host), 'label', host)}"


def _shortened(words: Sequence[str], settings: str) -> str:
    """The differences that fit in a label, then the digest of all settings."""
    whole = ", ".join(words)
    if len(whole) <= LENGTH:
        return whole
    kept: list[str] = []
    for word in words:
        if len(", ".join([*kept, word])) > LENGTH - DIGITS - 2:
            break
        kept.append(word)
    return " ".join([", ".join(kept), f"…{settings[:DIGITS]}"]).strip()


def settings_table(runs: Iterable[Run]) -> list[dict[str, str]]:
    """A row per variant: settings that differ from the defaults, and the others."""
    rows = []
    for variant in {run.variant: run for run in runs}.values():
        params, usual = flat(variant.params), flat(defaults(variant.params))
        changed = {name: value for name, value in params.items() if name not in usual or usual[name] != value}
        others = {name: value for name, value in params.items() if name not in changed}
        rows.append(
            {
                "variant": variant.variant,
                "label": variant.label,
                "settings": variant.settings,
                "changed": ", ".join(say(*item) for item in changed.items()),
                "others": ", ".join(say(*item) for item in others.items()),
            }
        )
    return rows


def defaults(params: Mapping[str, Any]) -> dict[str, Any]:
    """The default of every setting in ``params`` that has one, in the same sections."""
    method = params["method"]
    sections = {
        "method": {"name": method["name"]} | defaults_of(METHODS.get(method["name"])),
        "training": defaults_of(LocalTraining, params["training"]),
        "run": defaults_of(RunSettings, params["run"]),
        "partition": defaults_of(PartitionParams, params["partition"]),
        "data": {name: defaults_of(DatasetParams, entry) for name, entry in params["data"].items()},
        "central": {name: _central(entry) for name, entry in params.get("central", {}).items()},
    }
    if "host" in method:
        wrapped = {"parameters": defaults_of(METHODS.get(method["host"]["name"]))}
        sections["method"]["host"] = sections["method"].get("host", {}) | wrapped
    return json.loads(json.dumps(sections))  # lists, as in the files


def _central(entry: Mapping[str, Any]) -> dict[str, Any]:
    training = defaults_of(CentralTraining, entry["training"])
    return defaults_of(CentralParams, entry) | {"training": training}


def defaults_of(cls: type[Settings] | None, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The defaults of ``cls``, including the parameters of the choice and of the mappings in ``given``."""
    if cls is None:
        return {}
    values = {row["name"]: row["default"] for row in explain(cls) if row["default"] != "required"}
    for name, value in (given or {}).items():
        if isinstance(value, Mapping) and values.get(name, value) is None:
            kinds = (arm for arm in get_args(hints(cls)[name]) if isinstance(arm, type))
            values[name] = defaults_of(next((arm for arm in kinds if issubclass(arm, Settings)), None), value)
    if issubclass(cls, Choice) and given is not None:
        values[PARAMETERS] = defaults_of(cls.known().get(given.get(cls.key, "")))
    return {name: v.as_dict() if isinstance(v, Settings) else v for name, v in values.items()}
