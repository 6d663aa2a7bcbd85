"""Variants: the runs of a method on a partition that have the same settings and the same data.

Only runs of one variant are averaged, over their seeds. The variant that params.yaml defines (its folder
is ``<seed>``) has the name of the method; the others are named after their differences from it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from fedflow.data import SOURCES, DatasetParams
from fedflow.local.training import LocalTraining
from fedflow.methods import METHODS
from fedflow.partition import SCHEMES, PartitionParams
from fedflow.report.run import Run
from fedflow.settings import Settings, explain
from fedflow.simulation.run import RunSettings

PLAIN = ("method", "training", "run")  # sections left out of the names of their fields
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
    return sorted(found, key=lambda run: (run.partition, run.method, run.variant, run.seed))


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
    mine, theirs = flat(run.params), flat(base.params)
    wrapped = {}
    if mine.get(HOST) != theirs.get(HOST):  # hyper-parameters of another host are compared with its defaults
        wrapped = {HOST: mine[HOST]}  # the label has it already
        usual, inside = flat(defaults(run.params)), HOST.removesuffix("name")
        theirs = {n: (usual if n.startswith(inside) else theirs).get(n) for n in (*mine, *theirs)} | wrapped
    names = sorted({*mine, *theirs})
    differs |= {name: mine.get(name) for name in names if mine.get(name) != theirs.get(name)}
    short = _shortened([say(*item) for item in differs.items()], run.settings)
    full = ", ".join(f"{name} {text(value)}" for name, value in (wrapped | differs).items())
    return replace(run, variant=f"{run.method} · {full}", label=f"{label} · {short}" if short else label)


def _label(run: Run) -> str:
    """The method's name, with its host if that is not the default."""
    label, host = run.metrics["method_label"], flat(run.params).get(HOST, "")
    if host == flat(defaults(run.params)).get(HOST, ""):
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


def flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted name; the entries of ``parameters`` are moved one level up."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            found |= flat(value, prefix if name == "parameters" else f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def text(value: Any) -> str:
    """A value as YAML writes it in one line."""
    return value if isinstance(value, str) else json.dumps(value)


def say(name: str, value: Any) -> str:
    """``method.clusters`` as "clusters 4", ``partition.alpha`` as "partition alpha 0.1"."""
    return f"{spoken(name)} {text(value)}"


def spoken(name: str) -> str:
    """A dotted name in words."""
    section, _, rest = name.removesuffix("_hash").partition(".")
    return rest if section in PLAIN else " ".join([section, *rest.split(".")]).strip()


def settings_table(runs: Iterable[Run]) -> list[dict[str, str]]:
    """A row per variant: the settings that differ from the defaults, and the others."""
    rows = []
    for variant in {run.variant: run for run in runs}.values():
        params, usual = flat(variant.params), flat(defaults(variant.params))
        own = {name: value for name, value in params.items() if name not in usual or usual[name] != value}
        others = {name: value for name, value in params.items() if name not in own}
        rows.append({
            "variant": variant.variant, "label": variant.label, "settings": variant.settings,
            "own": ", ".join(say(*item) for item in own.items()),
            "others": ", ".join(say(*item) for item in others.items()),
        })  # fmt: skip
    return rows


def defaults(params: Mapping[str, Any]) -> dict[str, Any]:
    """The default of every setting in ``params`` that has one, in the same sections."""
    partition, method = params["partition"], params["method"]
    sections = {
        "method": {"name": method["name"]} | _defaults(METHODS.get(method["name"])),
        "training": _defaults(LocalTraining),
        "run": _defaults(RunSettings),
        "partition": _defaults(PartitionParams) | _defaults(SCHEMES.get(partition["scheme"])),
        "data": {name: _source(entry["source"]) for name, entry in params["data"].items()},
    }
    if "host" in method:
        wrapped = {"parameters": _defaults(METHODS.get(method["host"]["name"]))}
        sections["method"]["host"] = sections["method"].get("host", {}) | wrapped
    return json.loads(json.dumps(sections))  # lists, as in the files


def _source(name: str) -> dict[str, Any]:
    source = SOURCES.get(name)
    return _defaults(source.options if source else None) | _defaults(DatasetParams)


def _defaults(cls: type | None) -> dict[str, Any]:
    rows = explain(cls) if cls is not None else []
    values = {row["name"]: row["default"] for row in rows if row["default"] != "required"}
    return {name: v.as_dict() if isinstance(v, Settings) else v for name, v in values.items()}
