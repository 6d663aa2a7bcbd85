"""Extensions of local training: one file, one class each. Importing this package registers some of them."""

from fedflow.local.extensions import label_flip as label_flip
