"""One global model that is fair to clients with high losses."""

from fedflow.methods.fairness import aaggff_d, aaggff_s, afl, fedmgda, propfair, qfedavg, qfedsgd, term  # noqa: F401
