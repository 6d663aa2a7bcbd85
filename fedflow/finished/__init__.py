"""Finished runs as tables: read, grouped into variants, averaged and compared."""
