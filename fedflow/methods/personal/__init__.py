"""A personal model, or a personal part of one, for every client."""

from fedflow.methods.personal import (  # noqa: F401
    apfl,
    apfl_as_published,
    ditto,
    ditto_as_published,
    fedbn,
    fedper,
    fedrep,
    l2gd,
    lg_fedavg,
    local,
    mtl,
    pavg,
    perfedavg,
    pfedme,
    pfldyn,
    pflscaf,
    superfed,
)
