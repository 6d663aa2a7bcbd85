"""One global model that is fair to clients with high losses."""

from fedflow.methods.fairness import (  # noqa: F401
    afl,
    fedmgda,
    propfair,
    qfedavg,
    qfedsgd,
    term,
)
