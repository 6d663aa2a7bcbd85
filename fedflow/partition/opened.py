"""The examples of a dataset, as the clients of a partition have them."""

from typing import NamedTuple

from fedflow.data import Dataset, Examples
from fedflow.partition.after.inputs import steps
from fedflow.partition.partition import Partition


class Opened(NamedTuple):
    """Training and test examples with the labels and inputs of a partition.

    ``test`` is the complete test set, whose inputs never change. ``own`` has the same samples with the inputs
    that clients are tested on, or None if clients are tested on parts of ``train``, or on ``test`` itself.
    """

    train: Examples
    test: Examples
    own: Examples | None = None


def opened(dataset: Dataset, partition: Partition) -> Opened:
    """The examples of ``dataset``, on the CPU."""
    train = dataset.train.relabeled(partition.train_labels)
    test = dataset.test.relabeled(partition.test_labels)
    own, seed, clients = test, partition.params.get("seed", 0), len(partition.sizes)
    for change in steps(partition.params):
        of_train, of_test = partition.owned(change, len(train), len(test))
        train = change.applied(train, of_train, clients, seed, "train")
        if not partition.held_out:
            own = change.applied(own, of_test, clients, seed, "test")
    return Opened(train, test, None if own is test else own)
