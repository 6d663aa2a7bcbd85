"""One global model, from averages of the clients' updates."""

from fedflow.methods.averaging import (  # noqa: F401
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    feddyn,
    fednova,
    fedprox,
    fedsgd,
    fedsplit,
    fedyogi,
    scaffold,
)
