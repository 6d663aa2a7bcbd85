"""IFCA as published: clients are tested with the model that fits their test data best.

Source: Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning",
NeurIPS 2020, arXiv 2006.04088; the authors' code for MNIST and CIFAR, github.com/jichan3751/ifca.

As `ifca`, except at test time: a client is scored with each of the k models on its test data, and the lowest
loss counts. The test data choose, so accuracies are optimistic: use it to repeat Tables 1 and 2, not to
compare methods.
*Reduces to* uniform FedAvg when k = 1. *State*: as IFCA. *Traffic*: k P down, 1 P and the cluster number up.
*Newcomer*: is tested in the same way.
"""

from typing import ClassVar

from fedflow.methods.clustered.ifca import IFCA
from fedflow.methods.registry import register


@register("ifca_as_published", "IFCA as published")
class IFCAAsPublished(IFCA):
    chooses_on_test: ClassVar[bool] = True
