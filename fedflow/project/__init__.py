"""Shared by stages: checked arguments, YAML, the terminal, identities, templates, active runs."""
