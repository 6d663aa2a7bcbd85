"""Procedures, each in a file or folder. Importing this package registers them all."""

from fedflow.procedures import coresets, distillation, online, toys  # noqa: F401
from fedflow.procedures.interface import (
    PROCEDURES,
    Column,
    End,
    Findings,
    Inputs,
    Procedure,
    Row,
    State,
    World,
    register,
)

__all__ = [
    "PROCEDURES",
    "Column",
    "End",
    "Findings",
    "Inputs",
    "Procedure",
    "Row",
    "State",
    "World",
    "register",
]
