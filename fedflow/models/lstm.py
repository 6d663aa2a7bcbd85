"""Recurrent networks over sequences of tokens [B, L], whole numbers 0..K-1."""

from torch import Tensor, nn
from torch.nn import functional as F

SPECIALS = 4  # tokens 0..3 are PAD, UNK, BOS, EOS


class _LSTM(nn.LSTM):
    """An LSTM for a `FlatModel`, whose weights change in every call."""

    def flatten_parameters(self) -> None:
        """Do nothing: weights are views of the vector and must not be copied to another buffer."""


class CharLSTM(nn.Module):
    """Embedding, LSTM of ``layers``, dense layer on the last step: the next character.

    8-256-256 without biases has 815,744 parameters for 80 characters and 821,024 for 100 (SuPerFed's
    NextCharLM); 8-100-100 with biases has 133,520 (FedDyn).
    """

    tokens = True
    head_patterns = ("classifier.*",)

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        embedding: int = 8,
        hidden: int = 256,
        layers: int = 2,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, embedding)
        self.lstm = _LSTM(embedding, hidden, layers, bias, batch_first=True)
        self.classifier = nn.Linear(hidden, num_classes, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.lstm(self.embedding(x))[0][:, -1])


class StackedLSTM(nn.Module):
    """Embedding, LSTM of ``layers``, dense layer on every step: the next word at each position [B, L, K].

    200-256-256 with a vocabulary of 10,000 has 5,565,328 parameters (AAggFF on Reddit). The loss and the
    hits of a sequence are means over the positions with a word as target [B, L], not one of the
    `SPECIALS`; a sequence without words counts as 0.
    """

    tokens = True
    head_patterns = ("classifier.*",)

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        embedding: int = 200,
        hidden: int = 256,
        layers: int = 2,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, embedding)
        self.lstm = _LSTM(embedding, hidden, layers, batch_first=True)
        self.classifier = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.lstm(self.embedding(x))[0])

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy over the words of each sequence [B]."""
        return _over_words(F.cross_entropy(outputs.transpose(-1, -2), y, reduction="none"), y)

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Share of correctly predicted words of each sequence [B]."""
        return _over_words((outputs.argmax(-1) == y).to(outputs.dtype), y)


def _over_words(values: Tensor, y: Tensor) -> Tensor:
    """Mean of ``values`` [B, L] over the positions without a special token as target, [B]."""
    words = y >= SPECIALS
    return (values * words).sum(-1) / words.sum(-1).clamp(min=1)
