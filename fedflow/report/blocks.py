"""Sections of the page, and the blocks that they are made of. The template knows only these.

Text is escaped unless it is `Markup`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from fedflow.finished.cells import Table


@dataclass(frozen=True)
class Text:
    """A paragraph; ``kind`` are its classes in the style sheet."""

    text: str
    kind: str = "note"


@dataclass(frozen=True)
class Heading:
    """A heading within a section, what is printed small after it, and the id of its place."""

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
    """A picture with its heading and note; ``full`` is the same picture with an axis from 0 to 100 %."""

    heading: str
    picture: Markup
    note: str = ""
    full: Markup | None = None
    kind: str = "card"
    key: str = ""


@dataclass(frozen=True)
class Panels:
    """Drawings and tables side by side; ``kind`` says how wide they are at least."""

    parts: Sequence[Drawing | Table]
    kind: str = "three"


@dataclass(frozen=True)
class Card:
    """A question, the method that answers it, its value, and how certain that is."""

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
    """A link of a chain: its kind, name, digest, a note, the command that makes it, where more of it is."""

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
    """Controls for scripts of the page: the attributes of each, its label, and the place of its color."""

    described: str
    inputs: Sequence[tuple[Markup, str, int | None]]
    lead: str = ""


@dataclass(frozen=True)
class Fold:
    """Blocks that a click on the summary shows."""

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
    """A section of the page: the id of its place, title, lead, blocks, and its name in the navigation."""

    key: str
    title: str
    lead: str = ""
    blocks: Sequence[Block] = field(default_factory=list)
    name: str = ""
