"""One model for all, from averages of what the clients send."""

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
