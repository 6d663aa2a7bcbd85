"""One global model, from averages of the clients' updates."""

from fedflow.methods.averaging import (  # noqa: F401
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    feddyn,
    fednova,
    fedprox,
    fedprox_as_published,
    fedsgd,
    fedsplit,
    fedyogi,
    scaffold,
)
