"""docs/tutorials/costs.md: its settings run on digits, and each step does what the page says."""

import re
from pathlib import Path

import pytest
import yaml
from command import fedflow

PAGE = (Path(__file__).parents[1] / "docs" / "tutorials" / "costs.md").read_text()


def test_every_entry_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.M)
    params = yaml.safe_load(text.replace("mnist", "digits"))  # digits need no download
    params["data"] = {"digits": {"source": "digits"}}
    params["partitions"]["skewed"]["clients"] = 20
    params["run"]["rounds"] = 2
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert fedflow(capsys, "partition", "skewed").code == 0
    for name in ("private", "defended", "compressed"):
        done = fedflow(capsys, "run", "--partition", "skewed", "--method", name, "--executor", "inline")
        assert done.code == 0, (name, done.err)
    columns = {
        name: set(
            next(tmp_path.glob(f"results/skewed/{name}/*/rounds.csv")).read_text().split("\n")[0].split(",")
        )
        for name in ("private", "defended", "compressed")
    }
    assert columns["private"] >= {"update/privacy.epsilon", "client/privacy.clipped/mean"}
    assert columns["defended"] >= {"update/sign_flip.attackers"}
    assert columns["compressed"] >= {"client/top_k.lost/mean"}
    assert fedflow(capsys, "compare", "skewed").code == 0
