"""Variants: the runs of a method on a partition that have the same settings and the same data.

Only runs of one variant are averaged, over their seeds. The variant that params.yaml defines (its folder
is ``<seed>``) has the name of the method; the others are named after their differences from it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, get_args

from fedflow.choice import PARAMETERS, Choice
from fedflow.config import CentralParams
from fedflow.data import DatasetParams
from fedflow.finished.run import Run
from fedflow.local.central_training import CentralTraining
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS
from fedflow.naming import flat, say, text
from fedflow.partition import PartitionParams
from fedflow.settings import Settings, explain, hints
from fedflow.simulation.settings import RunSettings

LENGTH, DIGITS = 20, 4  # letters of the differences in a label, and of the digest among them
HASHES = ("data_hash", "partition_hash")
HOST = "method.host.name"  # the method that another one wraps


def named(runs: Sequence[Run]) -> list[Run]:
    """``runs`` with ``variant`` and ``label``; of two with equal variant and seed, the one in ``<seed>``."""
    found = []
    for _, group in groupby(runs, key=lambda run: (run.partition, run.method)):
        variants: dict[tuple, dict[int, Run]] = {}
        for run in sorted(group, key=lambda run: (_identity(run), run.seed, run.folder.name)):
            own = variants.setdefault(_identity(run), {})
            if run.seed in own:
                own[run.seed] = replace(own[run.seed], repeated=run.folder.name)
            else:
                own[run.seed] = run
        plain = max(variants.values(), key=lambda own: (sum(_is_plain(r) for r in own.values()), len(own)))
        base = next(iter(plain.values()))
        found += [_name(run, base) for own in variants.values() for run in own.values()]
    return sorted(_distinct(found), key=lambda run: (run.partition, run.method, run.variant, run.seed))


def _distinct(runs: Sequence[Run]) -> list[Run]:
    """``runs`` with the entry's name in labels that runs of another entry on their partition have too."""
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
    """What runs must share to be averaged."""
    return (run.settings, *(run.metrics[name] for name in HASHES))


def _is_plain(run: Run) -> bool:
    return run.folder.name == str(run.seed)


def _name(run: Run, base: Run) -> Run:
    """``run`` with its names: those of its method and of what differs from ``base``."""
    label = _label(run)
    if _identity(run) == _identity(base):
        return replace(run, variant=run.method, label=label)
    differs = {name: run.metrics[name][:8] for name in HASHES if run.metrics[name] != base.metrics[name]}
    wrapped, usual = {}, flat(defaults(run.params))
    mine, theirs = flat(run.params), flat(base.params)
    if mine.get(HOST) != theirs.get(HOST):  # hyper-parameters of another host are compared with its defaults
        wrapped = {HOST: mine[HOST]}  # the label has it already
        inside = HOST.removesuffix("name")
        theirs = {name: v for name, v in theirs.items() if not name.startswith(inside)} | wrapped
    differs |= differences(mine, theirs, usual)
    short = _shortened([say(*item) for item in differs.items()], run.settings)
    full = ", ".join(f"{name} {text(value)}" for name, value in (wrapped | differs).items())
    if not full:  # they differ in what results do not say, such as fields of other versions
        short = full = run.settings[:DIGITS]
    return replace(run, variant=f"{run.method} · {full}", label=f"{label} · {short}" if short else label)


def differences(
    mine: Mapping[str, Any], theirs: Mapping[str, Any], usual: Mapping[str, Any]
) -> dict[str, Any]:
    """By name, the settings of ``mine`` that differ; what only one of them has is compared with its default.

    A mapping that only ``mine`` has, with all defaults, is {}; one that only ``theirs`` has is null.
    """
    found: dict[str, Any] = {}
    for name in sorted({*mine, *theirs}):
        within = f"{name}."
        if name in mine:
            lost = mine[name] is None and any(other.startswith(within) for other in theirs)
            if lost or mine[name] != theirs.get(name, usual.get(name)):
                found[name] = mine[name]
        elif any(other.startswith(within) for other in mine):
            own = {n for n in mine if n.startswith(within) and mine[n] != usual.get(n)}
            found |= {} if own else {name: {}}
        elif theirs[name] not in (None, usual.get(name)) and not any(
            v is None and name.startswith(f"{n}.") for n, v in mine.items()
        ):
            found[name] = None
    return found


def _label(run: Run) -> str:
    """The method's name, with its host if that is not the default. An entry's name says what it needs to."""
    label, host = run.metrics["method_label"], flat(run.params).get(HOST, "")
    if host == flat(defaults(run.params)).get(HOST, "") or run.method != run.params["method"]["name"]:
        return label
    return f"{label}, host {getattr(METHODS.get(host), 'label', host)}"


def _shortened(words: Sequence[str], settings: str) -> str:
    """The differences that fit, then the digest of all settings."""
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
    """A row per variant: the settings that differ from the defaults, and the others."""
    rows = []
    for variant in {run.variant: run for run in runs}.values():
        params, usual = flat(variant.params), flat(defaults(variant.params))
        own = {name: value for name, value in params.items() if name not in usual or usual[name] != value}
        others = {name: value for name, value in params.items() if name not in own}
        rows.append(
            {
                "variant": variant.variant,
                "label": variant.label,
                "settings": variant.settings,
                "own": ", ".join(say(*item) for item in own.items()),
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
    """The defaults of ``cls``, and those of what ``given`` chooses.

    Where a default is null and ``given`` has a mapping, the mapping's.
    """
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
