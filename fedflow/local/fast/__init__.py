"""Faster forms of a local step, which give the bits of the plain one."""
