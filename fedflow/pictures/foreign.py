"""SVG from files, parsed once, checked, and written again from the same tree.

A page never holds the text of a file: an HTML parser may see elements where an XML parser sees none, such as
in a processing instruction.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from fedflow.errors import FedflowError

SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
COLORS = "colors"  # id of the style of an SVG file
RULE = "*{stroke-linejoin: round; stroke-linecap: butt}"  # the style sheet of matplotlib; pages have it, too
LARGEST = 20_000_000  # bytes of a file
DEEPEST = 40  # elements around an element; matplotlib nests about ten

NAME, NUMBERS = r"[\w.:-]+", r"[-+\d.,eE\s]*"
ATTRIBUTES = {
    "id": NAME,
    "d": r"[MmLlHhVvCcSsQqTtAaZz\d.,eE\s+-]*",
    **dict.fromkeys(("x", "y", "width", "height"), NUMBERS),
    "viewBox": r"(?:-?[\d.]+ ){3}[\d.]+",
    "transform": rf"(?:\s*(?:translate|scale|rotate|matrix)\({NUMBERS}\))*\s*",
    "clip-path": rf"url\(#{NAME}\)",
    "role": "img",
    "aria-label": r"(?s:.*)",
}
LINKS = {"use": f"#{NAME}", "image": r"data:image/png;base64,[A-Za-z0-9+/=\s]*"}
ELEMENTS = frozenset(["svg", "g", "defs", "clipPath", "path", "rect", "text", "tspan", *LINKS])
PROPERTIES = frozenset(
    (
        "fill fill-opacity opacity stroke stroke-opacity stroke-width stroke-linejoin stroke-linecap "
        "stroke-dasharray stroke-dashoffset font-size font-style font-variant font-weight font-stretch "
        "text-anchor image-rendering min-width"
    ).split()
)
VALUE = re.compile(r"[\w#.,% +-]*|var\(--[\w-]+\)", re.ASCII)  # no addresses, escapes, comments or strings


def rewritten(text: str, prefix: str) -> str:
    """The SVG in ``text`` without its colors, and with ``prefix`` before all ids.

    Raises `FedflowError` for anything that fedflow itself does not write.
    """
    root = _parsed(text)
    if _named(root.tag) != "svg":
        raise _refused(f"element {root.tag}")
    copy = _copied(root, prefix, 0)
    _check_links(copy)
    return ElementTree.tostring(copy, encoding="unicode")


class _Tree(ElementTree.TreeBuilder):
    """Refuse everything but elements and text."""

    def pi(self, target: str, text: str | None = None) -> Element:
        raise _refused("a processing instruction")

    def comment(self, text: str | None) -> Element:
        raise _refused("a comment")

    def doctype(self, *_: object) -> None:
        raise _refused("a document type")


def _parsed(text: str) -> Element:
    try:
        return ElementTree.fromstring(text, ElementTree.XMLParser(target=_Tree()))
    except (ElementTree.ParseError, ValueError) as error:
        raise _refused(f"not XML: {error}") from error


def _copied(element: Element, prefix: str, depth: int) -> Element:
    name = _named(element.tag)
    if name not in ELEMENTS or (name == "svg" and depth):
        raise _refused(f"element {name}")
    if depth > DEEPEST:
        raise _refused(f"more than {DEEPEST} elements within each other")
    copy = Element(name, dict(_attributes(element, name, prefix)))
    copy.text, copy.tail = element.text, element.tail
    copy.extend([_copied(child, prefix, depth + 1) for child in element if not _is_known_style(child)])
    return copy


def _attributes(element: Element, name: str, prefix: str) -> Iterator[tuple[str, str]]:
    """The checked attributes of a copy."""
    for full, value in element.attrib.items():
        key = full.removeprefix(XLINK) if full == f"{XLINK}href" else full
        accepted = LINKS.get(name) if key == "href" else ATTRIBUTES.get(key)
        if key == "style":
            _check_style(value)
        elif accepted is None or not re.fullmatch(accepted, value):
            raise _refused(f"attribute {key} of {name}")
        if key == "id":
            value = f"{prefix}-{value}"
        elif key == "clip-path" or (name, key) == ("use", "href"):
            value = value.replace("#", f"#{prefix}-", 1)
        yield key, value


def _check_style(declarations: str) -> None:
    for declaration in filter(str.strip, declarations.split(";")):
        name, _, value = declaration.partition(":")
        if name.strip() not in PROPERTIES or not VALUE.fullmatch(value.strip()):
            raise _refused(f"style {declaration.strip()}")


def _check_links(root: Element) -> None:
    """Refuse links that multiply elements: they may lead to paths only, and a clip path is not clipped."""
    by_id = defaultdict(set)
    for element in root.iter():
        by_id[element.get("id")].add(element.tag)
    for element in root.iter():
        if element.tag == "use" and by_id[element.get("href", "")[1:]] != {"path"}:
            raise _refused("a link to an element that is no path")
        if element.tag == "clipPath" and any(
            child.tag not in ("path", "rect") or child.get("clip-path") for child in element
        ):
            raise _refused("a clip path of other than paths and rectangles")


def _is_known_style(element: Element) -> bool:
    """True for a style sheet that fedflow writes; it is left out, because a page has its own."""
    if _named(element.tag) != "style":
        return False
    return not len(element) and (element.get("id") == COLORS or element.text == RULE)


def _named(tag: str) -> str:
    """The name of an SVG element, or the full name of an element of another namespace."""
    return tag.removeprefix(SVG) if tag.startswith(SVG) else f"{tag} outside of SVG"


def _refused(reason: str) -> FedflowError:
    return FedflowError(f"not an SVG written by fedflow: {' '.join(reason.split())[:60]}")
