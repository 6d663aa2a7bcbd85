"""The server makes labelled images; the model that clients are served is trained on them."""
