"""The installed distribution of fedflow. Its name is set in pyproject.toml, and read here only.

The name may differ from that of the package: on public package indexes, fedflow is another project.
"""

import re
from functools import cache
from importlib.metadata import Distribution, entry_points


@cache
def installed() -> Distribution | None:
    """Return the distribution; None for sources that are imported without being installed."""
    points = entry_points(group="fedflow.flows", name="pipeline")
    return next((point.dist for point in points if point.dist), None)


def name() -> str:
    """Return the distribution's name."""
    found = installed()
    return found.name if found else "fedflow"


def wheel() -> str:
    """Return the file name of the distribution's wheel."""
    found = installed()
    version = found.version if found else "VERSION"
    return f"{re.sub('[-_.]+', '_', name()).lower()}-{version}-py3-none-any.whl"
