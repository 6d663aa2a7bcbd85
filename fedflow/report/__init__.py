"""Result folders in, one self-contained HTML page and its CSV tables out."""

from fedflow.report.page import build_report, summary_plots

__all__ = ["build_report", "summary_plots"]
