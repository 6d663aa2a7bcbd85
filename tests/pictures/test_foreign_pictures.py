"""Pictures from files of other people: what a page shows is what was checked."""

from html.parser import HTMLParser

import pytest
from command import one_line_error

from fedflow.pictures.coresets import placed
from fedflow.pictures.drawing import COLORS, NAMESPACES, drawing, inlined
from fedflow.pictures.foreign import DEEPEST, ELEMENTS, RULE

LIVE = "<img src=x onerror=alert(1)>"
REFUSED = {
    "processing instruction": f"<?x >{LIVE}?>",
    "comment": f"<!-->{LIVE}-->",
    "entity in a style": '<path style="fill:url&#40;http://127.0.0.1/a)"/>',
    "entity in an attribute": '<g clip-path="url&#40;http://127.0.0.1/a)"/>',
    "image-set": "<path style=\"fill:image-set('http://127.0.0.1/a')\"/>",
    "image-set in an attribute": "<path fill=\"image-set('http://127.0.0.1/a')\"/>",
    "escape": r'<path style="fill:\75rl(http://127.0.0.1/a)"/>',
    "escape in a name": r'<path style="\66ill:red"/>',
    "comment in a style": '<path style="fill:u/**/rl(http://127.0.0.1/a)"/>',
    "address of a picture": '<path style="fill:url(data:image/svg+xml;base64,AAAA)"/>',
    "position": '<g style="position:fixed;inset:0"/>',
    "background": '<svg style="background:#fff"/>',
    "class": '<g class="card"/>',
    "style sheet": "<style>body{display:none}</style>",
    "style sheet after the known one": f"<style>{RULE}body{{display:none}}</style>",
    "import in a style sheet": '<style>@\\69mport "http://127.0.0.1/a"</style>',
    "style sheet of two parts": f"<style>{RULE}<g/>body{{display:none}}</style>",
    "script": "<script>1</script>",
    "script of another namespace": '<script xmlns="http://www.w3.org/1999/xhtml">1</script>',
    "element of another namespace": '<g xmlns="http://www.w3.org/1999/xhtml"/>',
    "element without a namespace": '<path xmlns=""/>',
    "foreign object": "<foreignObject><g/></foreignObject>",
    "title, which an HTML parser leaves": f"<title>{LIVE.replace('<', '&lt;')}</title>",
    "link": '<a href="javascript:1"><text>a</text></a>',
    "link by xlink": '<a xlink:href="javascript:1"><text>a</text></a>',
    "use of an address": '<use href="data:image/svg+xml;base64,AAAA#a"/>',
    "use of two addresses": '<path id="a"/><use href="#a" xlink:href="http://127.0.0.1/a#a"/>',
    "image of an address": '<image xlink:href="http://127.0.0.1/a"/>',
    "image that is SVG": '<image href="data:image/svg+xml;base64,AAAA"/>',
    "animation": '<path id="a"/><use href="#a"><animate attributeName="href" to="http://127.0.0.1/a"/></use>',
    "set": '<set attributeName="onclick" to="1"/>',
    "event": '<g onload="1"/>',
    "event in capitals": '<g OnLoad="1"/>',
    "event of a namespace": '<g xmlns:e="urn:e" e:onload="1"/>',
    "base": '<g xml:base="http://127.0.0.1/"/>',
    "filter": '<filter id="f"><feImage href="http://127.0.0.1/a"/></filter>',
    "font": '<text style="font-family:a">a</text>',
    "capitals": "<PATH/>",
    "picture in a picture": "<svg/>",
    "use of a use": '<path id="a"/><use id="b" href="#a"/><use href="#b"/>',
    "use of a group": '<g id="a"><path/></g><use href="#a"/>',
    "use of itself": '<g id="a"><use href="#a"/></g>',
    "clipped clip": '<clipPath id="a"><path clip-path="url(#a)"/></clipPath>',
    "group that clips": '<clipPath id="a"><g clip-path="url(#a)"/></clipPath>',
    "one too deep": "<g>" * (DEEPEST + 1) + "</g>" * (DEEPEST + 1),
    "far too deep": "<g>" * 100_000 + "</g>" * 100_000,
    "half": "<g>",
    "HTML": "<p>a<br></p>",
}
WHOLE = {
    "declared entity": '<!DOCTYPE svg [<!ENTITY a "b">]><svg xmlns="http://www.w3.org/2000/svg"><text>&a;</text></svg>',
    "many entities": '<!DOCTYPE svg [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]><svg>&b;</svg>',
    "outer document type": '<!DOCTYPE svg SYSTEM "http://127.0.0.1/a"><svg xmlns="http://www.w3.org/2000/svg"/>',
    "style sheet before": '<?xml-stylesheet href="http://127.0.0.1/a"?><svg xmlns="http://www.w3.org/2000/svg"/>',
    "no namespace": "<svg/>",
    "other root": '<g xmlns="http://www.w3.org/2000/svg"/>',
    "nothing": "",
    "text": "a",
    "event of the root": '<svg xmlns="http://www.w3.org/2000/svg" onload="1"/>',
    "other sizes": '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1"/>',
}
SHOWN = {  # refused by none, and harmless
    "text that looks like an element": f"<text>{LIVE.replace('<', '&lt;')}</text>",
    "text in a section": f"<text><![CDATA[{LIVE}</text></svg>]]></text>",
    "text after an end": f"<g/>{LIVE.replace('<', '&lt;')}",
    "colors with an element in their text": f'<style id="{COLORS}"><![CDATA[</style>{LIVE}]]></style>',
    "style sheet of matplotlib": f"<style>{RULE}</style>",
}


class Tags(HTMLParser):
    """Tags as HTML parsers see them, which is not as XML parsers do."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: " ".join((value or "").split()) for name, value in attrs}))

    handle_startendtag = handle_starttag

    def handle_pi(self, data: str) -> None:
        raise AssertionError(data)

    handle_decl = handle_comment = unknown_decl = handle_pi


def tags(html: str) -> list[tuple[str, dict[str, str]]]:
    parser = Tags()
    parser.feed(html)
    parser.close()
    return parser.found


@pytest.mark.parametrize("inside", REFUSED.values(), ids=REFUSED)
def test_what_fedflow_does_not_draw_with_is_refused(inside: str) -> None:
    with one_line_error("^not an SVG written by fedflow: "):
        inlined(f"<svg {NAMESPACES}>{inside}</svg>", "key")


@pytest.mark.parametrize("text", WHOLE.values(), ids=WHOLE)
def test_a_document_of_another_kind_is_refused(text: str) -> None:
    with one_line_error("^not an SVG written by fedflow: "):
        inlined(text, "key")


@pytest.mark.parametrize("inside", SHOWN.values(), ids=SHOWN)
def test_text_stays_text(inside: str) -> None:
    shown = inlined(f"<svg {NAMESPACES}>{inside}</svg>", "key")
    assert {tag for tag, _ in tags(shown)} <= {name.lower() for name in ELEMENTS}


def test_what_fedflow_draws_is_shown_as_it_is_drawn() -> None:
    import numpy as np
    from scipy.sparse import csr_array

    points = np.random.default_rng(0).normal(size=(6, 2))
    edges = csr_array(np.ones((6, 6)) - np.eye(6))
    drawn = placed(points, edges, None, {"a": (np.array([0, 2]), np.ones(2))})
    svg = drawn.svg.replace(f"{drawn.name}-", f"key-{drawn.name}-").replace("xlink:href", "href")
    shown = tags(inlined(drawn.file, "key"))
    shown.remove(("defs", {}))  # of the style sheet
    assert len(shown) > 20 and shown == tags(svg)


@pytest.mark.parametrize("name", ["font: 10px Arial", "font-family: a", "#0072b2", 'id="a"', "url(#a)", LIVE])
def test_a_name_in_a_picture_is_written_as_it_is(name: str) -> None:
    with drawing("key", name, 1, (0.1, 0.1, 0.1, 0.1)) as drawn:
        drawn.axes.text(0.5, 0.5, name)
    texts: list[str] = []
    parser = Tags()
    parser.handle_data = texts.append  # type: ignore[method-assign]
    parser.feed(drawn.svg)
    assert name in texts and dict(tags(drawn.svg)[0][1])["aria-label"] == name
    assert len(tags(inlined(drawn.file, "key"))) > 5
