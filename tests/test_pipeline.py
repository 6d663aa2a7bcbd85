"""dvc.yaml: a stage is run again whenever code changes that its outputs depend on."""

import sys
from pathlib import Path

import pytest
import yaml
from command import make_project

from fedflow import experiment
from fedflow.config import load_params
from fedflow.methods import METHODS

PIPELINE = Path(__file__).parents[1] / "dvc.yaml"


@pytest.mark.parametrize("difficulty", ["null", "{expert: mlp, epochs: 1}"], ids=["plain", "expert"])
def test_the_partition_stage_depends_on_all_code_that_partitions_are_made_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, difficulty: str
) -> None:
    """Else a later stage would make a partition anew, while it depends on the old one."""
    hashed: list[str] = []

    def digest(*parts: str) -> str:
        hashed.extend(parts)
        return ""

    root = make_project(tmp_path)
    params = load_params(root / "params.yaml", [f"partitions.mixed.difficulty={difficulty}"])
    experiment.prepare_dataset(params, "digits", root)
    monkeypatch.setattr(experiment, "code_digest", digest)
    experiment.prepare_partition(params, "mixed", root)
    depends = yaml.safe_load(PIPELINE.read_text())["stages"]["partition"]["deps"]
    assert hashed and {f"fedflow/{part}" for part in hashed} <= set(depends)
    assert all((PIPELINE.parent / path).exists() for path in depends if path.startswith("fedflow"))


@pytest.mark.parametrize("name", METHODS)
def test_the_federate_stage_depends_on_all_files_that_a_method_is_made_of(name: str) -> None:
    used, found = {METHODS[name].__module__}, set[str]()
    while used:
        module = used.pop()
        found.add(module)
        named = {getattr(value, "__module__", None) or "" for value in vars(sys.modules[module]).values()}
        used |= {m for m in named if m.startswith("fedflow.methods.")} - found
    paths = yaml.safe_load(PIPELINE.read_text())["stages"]["federate"]["deps"]
    depends = {path.replace("${item.method}", name) for path in paths}
    assert {f"{module.replace('.', '/')}.py" for module in found} <= depends
