"""Distillation: a small network learns from a larger one: KD, DiSK, SimKD, FitNet.

Source: Acar, thesis, Chapter 6 and Appendix A.1.5.
"""

from fedflow.procedures.distillation.methods import METHODS, Method
from fedflow.procedures.distillation.procedure import Distillation

__all__ = ["METHODS", "Distillation", "Method"]
