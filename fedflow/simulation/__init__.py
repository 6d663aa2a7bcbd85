"""Rounds, cohorts, client store, executors, checkpoints: everything that runs a method."""
