"""A partition as a whole: its test sets, its files, and what is refused."""

import hashlib
import json
import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dealing import equal, make
from safetensors.numpy import load_file, save_file
from support import refused

from fedflow.errors import FedflowError
from fedflow.partition import Partition, PartitionParams, Samples, load_partition, make_partition

TRAIN, TEST = np.arange(600) % 10, np.arange(150) % 10
SAMPLES = Samples(TRAIN, TEST)


def params(**changes: object) -> PartitionParams:
    entry = {"dataset": "digits", "scheme": "label_skew", "fraction": 0.2, "clients": 12, **changes}
    return PartitionParams.parse(entry)


@pytest.fixture
def made() -> Partition:
    return make_partition(params(), SAMPLES, "abc")


@pytest.fixture
def saved(made, tmp_path) -> Path:
    made.save(tmp_path / "p")
    return tmp_path / "p"


def test_a_client_is_tested_on_all_test_samples_of_the_labels_it_trains_on(made):
    for k in range(12):
        labels = np.unique(TRAIN[made.train(k)])
        assert np.array_equal(made.test(k), np.flatnonzero(np.isin(TEST, labels)))
        assert len(made.test(k)) == 30


@pytest.mark.parametrize(
    ("clients", "train", "test"),
    [(4, TRAIN, TEST), (1, [0, 0, 1], [1, 0, 1, 1]), (1, [0, 1], [0, 0])],
    ids=["every label", "one sample of a label", "a label without test samples"],
)
def test_clients_of_all_labels_are_tested_on_the_complete_test_set(clients, train, test):
    made = make(Samples(np.array(train), np.array(test)), "iid", clients=clients)
    for k in range(clients):
        assert made.test(k).tolist() == list(range(len(test)))


def test_saving_and_loading_changes_nothing(made, saved):
    loaded = load_partition(saved)
    assert loaded.hash == made.hash and loaded.params == made.params and loaded.dataset_hash == "abc"
    assert loaded.groups is None
    for k in range(12):
        assert equal((loaded.train(k), loaded.test(k)), (made.train(k), made.test(k)))


def test_arrays_are_mapped_from_the_file_and_copied_by_nobody(tmp_path):
    many = np.arange(200_000) % 10
    make(Samples(many, many[:100]), "iid", clients=100).save(tmp_path)
    tracemalloc.start()
    loaded = load_partition(tmp_path)  # compares the hash of all arrays too
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < loaded.indices.nbytes / 10


def test_planted_groups_survive_saving(tmp_path):
    make(SAMPLES, "label_groups", groups=2, clients=4).save(tmp_path)
    assert load_partition(tmp_path).groups.tolist() == [0, 0, 1, 1]
    assert json.loads((tmp_path / "summary.json").read_text())["groups"] == 2


def test_files_are_equal_byte_for_byte(made, saved, tmp_path):
    made.save(tmp_path / "again")
    files = sorted(file.name for file in saved.iterdir())
    assert files == ["partition.safetensors", "summary.json"]
    for name in files:
        one, other = (hashlib.sha256((f / name).read_bytes()).digest() for f in (saved, tmp_path / "again"))
        assert one == other, name


def test_the_summary_has_sizes_labels_and_skew(saved):
    summary = json.loads((saved / "summary.json").read_text())
    assert summary["clients"] == 12 and summary["samples_used"] == 600 and summary["samples_unused"] == 0
    assert summary["sizes"]["mean"] == 50 and summary["labels_per_client"] == 2
    assert summary["skew"] == pytest.approx(0.8, abs=0.02)  # half the L1 distance to ten equal shares
    assert summary["params"]["parameters"] == {"fraction": 0.2, "cover": False}


def test_parameters_left_at_their_defaults_are_recorded(tmp_path):
    make(SAMPLES, "dirichlet", clients=4).save(tmp_path)
    recorded = json.loads((tmp_path / "summary.json").read_text())["params"]["parameters"]
    assert recorded == {"alpha": 0.1, "min_size": 10}
    assert load_partition(tmp_path).params["parameters"] == recorded


def test_the_hash_depends_on_the_data_set_too(made):
    assert make_partition(params(), SAMPLES, "other").hash != made.hash


def test_the_hash_depends_on_who_joins_late_and_on_what_is_held_out(made):
    """They are facts beside the arrays: of a damaged summary, the hash does not fit."""
    assert len({made.hash, replace(made, newcomers=1).hash, replace(made, held_out=True).hash}) == 3


FILE, SUMMARY = "partition.safetensors", "summary.json"


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def other_indices(file: Path) -> None:
    arrays = load_file(file)
    arrays["indices"][:2] = arrays["indices"][1::-1]
    save_file(arrays, file)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        (FILE, Path.unlink, "there is no .*partition.safetensors"),
        (SUMMARY, Path.unlink, "there is no .*summary.json"),
        (FILE, cut_short, "partition.safetensors is damaged"),
        (FILE, lambda file: file.write_bytes(b""), "partition.safetensors is damaged"),
        (FILE, lambda file: file.write_bytes(pickle.dumps({})), "partition.safetensors is damaged"),
        (FILE, other_indices, "does not match the hash in summary.json"),
        (SUMMARY, cut_short, "is damaged"),
        (SUMMARY, lambda file: file.write_text("[]"), "is damaged"),
        (SUMMARY, lambda file: file.write_text("{}"), "is damaged"),
        (SUMMARY, lambda file: file.write_text('{"params": {}, "dataset_hash": ""}'), "is damaged"),
    ],
)
def test_damaged_files_are_named_with_the_remedy(saved, name, spoil, message):
    spoil(saved / name)
    with refused(rf"{message}.*run `fedflow partition` for it again", FedflowError):
        load_partition(saved)


def test_whichever_byte_is_wrong_the_partition_loads_unchanged_or_is_refused_in_one_line(tmp_path):
    small = make_partition(params(clients=2), Samples(TRAIN[:40], TEST[:10]), "abc")
    small.save(tmp_path)
    file = tmp_path / FILE
    content = file.read_bytes()
    for place in range(len(content)):  # the header, its JSON, and the arrays each break in their own way
        file.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            assert load_partition(tmp_path).hash == small.hash
        except FedflowError as error:
            assert "\n" not in str(error)


def test_a_folder_that_cannot_be_made_is_named(made, tmp_path):
    (tmp_path / "file").touch()
    with refused(r"cannot write the partition to .*file/p", FedflowError):
        made.save(tmp_path / "file" / "p")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": "dirichlt", "fraction": 0.2}, r"partition.scheme: 'dirichlt' .*did you mean 'dirichlet'"),
        ({"scheme": ["iid"]}, r"partition.scheme: \['iid'\] is not accepted"),
        ({"fractoin": 0.2}, r"partition.fractoin: .*did you mean 'fraction'"),
        ({"client": 2}, r"partition.client: .*did you mean 'clients'"),
        ({"clients": 0}, r"partition.clients: 0 .* >= 1"),
        ({"clients": 2.5}, r"partition.clients: 2.5 .*a whole number"),
        ({"clients": True}, r"partition.clients: True .*a whole number"),
        ({"fraction": 0}, r"partition.fraction: 0.0 .*> 0 and <= 1"),
        ({"fraction": "many"}, r"partition.fraction: 'many' .*a number"),
        ({"seed": -1}, r"partition.seed: -1 .* >= 0"),
        ({"alpha": 0.1}, r"partition.alpha: 'alpha' is not accepted"),
    ],
)
def test_parameters_are_checked_by_name(changes, message):
    with refused(message):
        params(**changes)


def test_messages_name_the_partition_as_params_yaml_does():
    entry = {"dataset": "d", "scheme": "dirichlet", "clients": 3, "alpha": -1}
    with refused(r"^partitions.mine.alpha: -1.0 is not accepted; expected a number > 0"):
        PartitionParams.parse(entry, section="partitions.mine")


def test_every_client_gets_training_samples():
    with refused(r"partition.clients: 601 .*at most 600"):
        make_partition(params(clients=601), SAMPLES)
    with refused(r"partition.clients: 100 .*fewer: a client got no training samples"):
        make(SAMPLES, "dirichlet", clients=100, alpha=0.01, min_size=0)


@pytest.mark.full
def test_a_hundred_thousand_clients_share_a_million_samples(tmp_path):
    labels = np.random.default_rng(0).integers(0, 10, 1_000_000)
    made = make(Samples(labels, labels[:1000]), "iid", clients=100_000)
    assert (made.sizes == 10).all() and np.array_equal(np.sort(made.indices), np.arange(1_000_000))
    made.save(tmp_path)
    assert load_partition(tmp_path).hash == made.hash
