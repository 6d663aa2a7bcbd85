"""Named data sources, their prepared form on disk, and examples on one device."""

from fedflow.data.examples import Examples
from fedflow.data.files import DataColumn
from fedflow.data.params import DatasetParams, within
from fedflow.data.prepared import Dataset, is_current, load_prepared, need_classes, origin_sums, prepare
from fedflow.data.sources import SOURCES, Source, data_root, source

__all__ = [
    "SOURCES",
    "DataColumn",
    "Dataset",
    "DatasetParams",
    "Examples",
    "Source",
    "data_root",
    "is_current",
    "load_prepared",
    "need_classes",
    "origin_sums",
    "prepare",
    "source",
    "within",
]
