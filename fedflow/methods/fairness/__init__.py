"""One global model that is fair to clients with high losses."""

from fedflow.methods.fairness import (  # noqa: F401
    aaggff_d,
    aaggff_s,
    afl,
    fedmgda,
    propfair,
    qfedavg,
    qfedsgd,
    term,
)
