"""Sections of the page: a file each, whose functions make a section of what is compared, or None."""
