"""Prefect flows: stages in their order."""
