"""Measures of clients and of clusterings."""
