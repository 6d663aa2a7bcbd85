"""docs/tutorials/compare.md from an empty folder: every command works, in the order of the page."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from command import fedflow

PAGE = (Path(__file__).parents[1] / "docs" / "tutorials" / "compare.md").read_text()
SERVERS = ("sweep", "ui", "tune")  # they start servers; `run` stands for the sweep


def commands() -> list[list[str]]:
    """The words of every command of the page, in order."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.M)
    text = "".join(block for kind, block in blocks if not kind)
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [words[1:] for words in lines if words[:1] == ["fedflow"]]


def test_commands_work_from_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.M)
    params = yaml.safe_load(text.replace("cifar10", "digits"))  # digits need no download
    params["data"] = {"digits": {"source": "digits"}}
    params["run"] = {"rounds": 1, "participation": 0.5}
    params["models"] = {"digits": "mlp"}
    params["training"] = {"epochs": 1, "batch_size": 64}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = [
        ["run", "--partition", "skewed", "--method", name, "--executor", "inline"]
        for name in ("ditto", "fedavg")
    ]
    called = []
    for words in commands():
        for call in run if words[0] == "sweep" else [words]:
            if call[0] not in SERVERS:
                done = fedflow(capsys, *call)
                assert done.code == 0, (call, done.err)
                called.append(call[0])
    assert called == ["partition", "partitions", "run", "run", "ls", "show", "compare", "report"]
