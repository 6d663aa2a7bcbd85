"""Distillation: a small network learns from a larger one, which has been trained."""
