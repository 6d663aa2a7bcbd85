"""Extensions of a run: features that only some runs have, one file each.

Importing this package registers the ones that are not in `all_extensions.EXTENSIONS`.
"""

from fedflow.simulation.extensions import backdoor as backdoor
