"""The server makes labeled images; the model that clients are served is trained on them."""

from fedflow.methods.generative import fedcgan, fedcvae, fedevg  # noqa: F401
