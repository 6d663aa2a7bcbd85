"""One global model that is fair to clients with high losses."""

from fedflow.methods.fairness import (  # noqa: F401
    aaggff_d,
    aaggff_d_as_published,
    aaggff_s,
    aaggff_s_as_published,
    afl,
    fedmgda,
    propfair,
    qfedavg,
    qfedsgd,
    term,
)
