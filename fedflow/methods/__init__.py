"""Federated methods, one file each. Importing this package registers them all."""

from fedflow.methods import (  # noqa: F401
    afl,
    apfl,
    cfl,
    ditto,
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fedcluster,
    feddyn,
    fedmgda,
    fednova,
    fedper,
    fedprox,
    fedrep,
    fedsc,
    fedsgd,
    fedyogi,
    fesem,
    ifca,
    l2gd,
    lg_fedavg,
    local,
    mtl,
    one_shot,
    perfedavg,
    pfedme,
    propfair,
    qfedavg,
    qfedsgd,
    scaffold,
    term,
)
from fedflow.methods.base import METHODS, Method, build_method

__all__ = ["METHODS", "Method", "build_method"]
