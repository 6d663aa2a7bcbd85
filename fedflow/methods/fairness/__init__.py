"""One model for all that also serves clients whose loss is high."""

from fedflow.methods.fairness import (  # noqa: F401
    afl,
    fedmgda,
    propfair,
    qfedavg,
    qfedsgd,
    term,
)
