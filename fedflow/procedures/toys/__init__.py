"""The toys of DiSK: students of a few parameters, whose minima can be counted over many starts."""

from fedflow.procedures.toys.gaussians import Gaussians
from fedflow.procedures.toys.intervals import Intervals

__all__ = ["Gaussians", "Intervals"]
