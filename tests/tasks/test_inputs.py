"""The tasks around the data, as plain functions."""

from command import make_project, one_cell

from fedflow.config import load_params
from tasks.inputs import make_partition, prepare_data


def test_what_is_there_is_not_made_again(tmp_path):
    make_project(tmp_path, one_cell("{source: digits}", "mlp", "scheme: iid, clients: 3"))
    params = load_params(tmp_path / "params.yaml")

    def times() -> dict:
        data = prepare_data.fn(params, "data", tmp_path)
        partition = make_partition.fn(params, "few", tmp_path)
        assert (data, partition) == (tmp_path / "data/prepared/data", tmp_path / "data/partitions/few")
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    assert times() == times()
