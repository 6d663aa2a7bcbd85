"""Named data sources, their prepared form on disk, and examples that live on one device."""

from fedflow.data.examples import Examples
from fedflow.data.files import Column
from fedflow.data.prepared import Dataset, DatasetParams, load_prepared, prepare
from fedflow.data.sources import SOURCES, Source, data_root, source

__all__ = [
    "SOURCES",
    "Column",
    "Dataset",
    "DatasetParams",
    "Examples",
    "Source",
    "data_root",
    "load_prepared",
    "prepare",
    "source",
]
