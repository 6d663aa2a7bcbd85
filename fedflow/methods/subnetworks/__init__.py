"""Clients with part of a network: masks that they learn, and networks of several sizes."""
