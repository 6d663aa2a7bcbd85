"""Result folders in, one self-contained HTML page and its CSV tables out."""
