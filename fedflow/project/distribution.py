"""The installed distribution of fedflow. Its name is set in pyproject.toml, and read here only.

It may differ from the name of the package: on public package indexes, fedflow is another project.
"""

import re
from functools import cache
from importlib.metadata import Distribution, entry_points
from importlib.util import find_spec

from fedflow.errors import FedflowError


@cache
def installed() -> Distribution | None:
    """Return the distribution, or None for sources that are imported without being installed."""
    points = entry_points(group="fedflow.flows", name="pipeline")
    return next((point.dist for point in points if point.dist), None)


def name() -> str:
    """Return the distribution's name."""
    distribution = installed()
    return distribution.name if distribution else "fedflow"


def wheel() -> str:
    """Return the file name of the distribution's wheel."""
    distribution = installed()
    version = distribution.version if distribution else "VERSION"
    return f"{re.sub('[-_.]+', '_', name()).lower()}-{version}-py3-none-any.whl"


def extra(part: str) -> str:
    """Return the commands that install an optional part of fedflow.

    They name the repository or a wheel: on package indexes, the name fedflow belongs to another project.
    """
    return f"`pip install -e '.[{part}]'` in fedflow's repository, or `pip install '{wheel()}[{part}]'`"


def require(what: str, *packages: str, part: str = "pipeline") -> None:
    """Raise `FedflowError` unless the packages that ``what`` needs are installed; ``part`` installs them."""
    if missing := [package for package in packages if find_spec(package) is None]:
        raise FedflowError(f"{what} needs {' and '.join(missing)}, not installed here: {extra(part)}")
