"""Result folders in, one self-contained HTML page and its CSV tables out."""

from fedflow.report.page import build_report

__all__ = ["build_report"]
