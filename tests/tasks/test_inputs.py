"""The tasks around the data, as plain functions."""

from fedflow.config import load_params
from tasks.inputs import make_partition, prepare_data

PARAMS = """
data: {digits: {source: digits}}
models: {digits: mlp}
partitions: {few: {dataset: digits, scheme: iid, clients: 3}}
grid: {datasets: [digits], partitions: [few], methods: [fedavg], seeds: [0]}
"""


def test_what_is_there_is_not_made_again(tmp_path):
    (tmp_path / "params.yaml").write_text(PARAMS)
    params = load_params(tmp_path / "params.yaml")

    def times() -> dict:
        data = prepare_data.fn(params, "digits", tmp_path)
        partition = make_partition.fn(params, "few", tmp_path)
        assert (data, partition) == (tmp_path / "data/prepared/digits", tmp_path / "data/partitions/few")
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    assert times() == times()
