"""Structured as published: clients of a shorter last group are also tested on label 0, as in FLT's code.

Order of sampling: as in `structured`, with the same training samples. The code pads the list of labels
with zeros, so that the test sets of a last group with fewer labels hold label 0, which these clients never
train on. Use it to repeat published numbers only.
Source: FLT (Jamali-Rad et al., 2021), scenario 4, in the authors' code.

>>> import numpy as np
>>> scheme = StructuredAsPublished(labels_per_group=2)
>>> split = scheme.split(Samples(np.arange(60) % 3, np.arange(3)), 4, np.random.default_rng(0))
>>> [own.tolist() for own in split.own]
[[0, 1], [0, 1], [0, 2], [0, 2]]
"""

from typing import ClassVar

from fedflow.partition.scheme import Samples, register  # noqa: F401
from fedflow.partition.structured import Structured


@register("structured_as_published")
class StructuredAsPublished(Structured):
    padded: ClassVar[bool] = True
