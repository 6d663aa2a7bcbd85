"""Sections of the page and their blocks, the only things that the template knows.

Text is escaped unless it is `Markup`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from fedflow.finished.cells import Table


@dataclass(frozen=True)
class Text:
    """A paragraph; ``kind`` has its classes in the style sheet."""

    text: str
    kind: str = "note"


@dataclass(frozen=True)
class Heading:
    """A heading within a section, with small text after it and an id."""

    text: str
    small: str = ""
    key: str = ""
    level: int = 3


@dataclass(frozen=True)
class Listing:
    items: Sequence[str]
    numbered: bool = False


@dataclass(frozen=True)
class Drawing:
    """A picture with heading and note; ``full`` is the same picture with an axis from 0 to 100 %."""

    heading: str
    picture: Markup
    note: str = ""
    full: Markup | None = None
    kind: str = "card"
    key: str = ""


@dataclass(frozen=True)
class Panels:
    """Drawings and tables side by side; ``kind`` sets their minimum width."""

    parts: Sequence[Drawing | Table]
    kind: str = "three"


@dataclass(frozen=True)
class Card:
    """A question, the method that answers it, its value, and its lead over the next method."""

    question: str
    label: str
    value: str
    spread: str
    unit: str
    detail: str


@dataclass(frozen=True)
class Cards:
    cards: Sequence[Card]
    picture: Markup | None


@dataclass(frozen=True)
class Step:
    """A link of a chain, with the command that makes it and a link to more."""

    kind: str
    name: str
    digest: str = ""
    note: str = ""
    command: str = ""
    link: str = ""
    picture: Markup | None = None


@dataclass(frozen=True)
class Chain:
    steps: Sequence[Step]


@dataclass(frozen=True)
class Switches:
    """Controls for scripts of the page: attributes, label and color index of every input."""

    described: str
    inputs: Sequence[tuple[Markup, str, int | None]]
    lead: str = ""


@dataclass(frozen=True)
class Fold:
    """Blocks that open with a click on the summary."""

    summary: str
    blocks: Sequence["Block"]
    kind: str = "card wide"
    open: bool = False
    key: str = ""


@dataclass(frozen=True)
class Box:
    """Blocks with a frame."""

    blocks: Sequence["Block"]
    kind: str


Block = Text | Heading | Listing | Drawing | Panels | Table | Cards | Chain | Switches | Fold | Box | Markup


@dataclass(frozen=True)
class Section:
    """A section of the page: id, title, lead, blocks, and a shorter name for the navigation."""

    key: str
    title: str
    lead: str = ""
    blocks: Sequence[Block] = field(default_factory=list)
    name: str = ""
