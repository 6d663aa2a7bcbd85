"""The server makes labelled images; the model that clients are served is trained on them."""

from fedflow.methods.generative import fedcgan, fedcvae, fedevg  # noqa: F401
