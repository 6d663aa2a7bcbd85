"""Measurements of clients and of clusterings."""
