"""Clusters of clients that share a model, or train in turn."""

from fedflow.methods.clustered import (  # noqa: F401
    cfl,
    fedac,
    fedcluster,
    fedsc,
    fesem,
    flis_dc,
    flis_hc,
    flt,
    ifca,
    ifca_as_published,
    lcfl,
    one_shot,
    pacfl,
    pca_km_hc,
)
