"""Strict YAML: maps with names, lists, text, numbers, truth values and nulls.

YAML 1.1, YAML 1.2 and DVC disagree about values such as ``010``, ``1:30``, ``off`` and dates. Such a value is
refused unless it is quoted. Every error is one line with the line number.
"""

import re
from collections import ChainMap
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from fedflow.errors import FedflowError

DEEPEST = 64  # lists and maps within one another
COPIES = 100_000  # values that aliases may repeat
LONGEST = 40  # letters of a value that an error shows
CORE = "tag:yaml.org,2002:"
PLAIN = "plain"  # the tag of a value without quotes and without a tag in the file

TAGS = {ScalarNode: f"{CORE}str", SequenceNode: f"{CORE}seq", MappingNode: f"{CORE}map"}

NULLS = ("", "~", "null", "Null", "NULL")
TRUTHS = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+")
REAL = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
NEWER = re.compile(r"[-+]?0o?[0-9_]+")  # text in YAML 1.1, a number in YAML 1.2
OLD = yaml.SafeLoader("")  # resolves values as in YAML 1.1
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
UNCLEAR = {  # values that versions of YAML read differently, by their tag in YAML 1.1
    "bool": "is a truth value in YAML 1.1: write true or false, or put it in quotes",
    "int": "is not read alike by all versions of YAML: write a decimal number, or put it in quotes",
    "float": "is not read alike by all versions of YAML: write a decimal number, or put it in quotes",
    "timestamp": "is a date in YAML: put it in quotes",
}
KINDS: dict[str, tuple[type, ...]] = {  # tags that a file may write, and the values that they accept
    "null": (type(None),),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
}
KEYS = {
    bool: "is a truth value in YAML: put it in quotes",
    type(None): "is nothing in YAML: put it in quotes",
    int: "is a number in YAML: put it in quotes",
    float: "is a number in YAML: put it in quotes",
}


class YamlError(FedflowError):
    """Text that is not accepted, with its ``problem`` and ``line``, counted from 1."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {problem}" if line else problem)
        self.problem, self.line = problem, line

    def __reduce__(self) -> tuple:
        return type(self), (self.problem, self.line)


def yaml_file(file: Path) -> Any:
    """The content of a YAML file. Raises `FedflowError` with its name, and `OSError`."""
    try:
        return yaml_value(file.read_bytes())
    except YamlError as error:
        raise FedflowError(f"{file}, line {error.line}: {error.problem}") from None


def yaml_value(text: str | bytes) -> Any:
    """The one document of ``text``. Raises `YamlError`."""
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        node = _Composer(text).get_single_node()
    except UnicodeDecodeError as error:
        byte, line = error.object[error.start], error.object[: error.start].count(b"\n") + 1
        raise _invalid(f"byte 0x{byte:02x} is not UTF-8", line) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise _invalid(problem, mark.line + 1 if mark else 1) from None
    except yaml.reader.ReaderError as error:
        line = str(text)[: error.position].count("\n") + 1
        raise _invalid(f"found the character {chr(error.character)!a}", line) from None
    except (ValueError, OverflowError):
        raise _invalid("found the number of no character, or of no version of YAML", 1) from None
    return None if node is None else _Builder().build(node)


def as_yaml(value: Any, **layout: Any) -> str:
    """YAML that `yaml_value` reads as ``value``, with options of `yaml.dump`."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, **layout)


class _Dumper(yaml.SafeDumper):
    """Quotes also what is a number in YAML 1.2 only, such as the text 09."""


_Dumper.add_implicit_resolver(f"{CORE}int", NEWER, [*"-+0123456789"])


def _invalid(problem: str, line: int) -> YamlError:
    return YamlError(f"not valid YAML: {' '.join(problem.split())}", line)


class _Composer(yaml.SafeLoader):
    """Composes nodes, in which a value without quotes and tag has the tag `PLAIN`."""

    depth = 0

    def resolve(self, kind: type[Node], value: Any, implicit: Any) -> Any:
        return PLAIN if kind is ScalarNode and implicit[0] else TAGS[kind]

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self.depth += 1
        if self.depth > DEEPEST:
            problem = f"more than {DEEPEST} lists or maps within one another"
            raise yaml.composer.ComposerError(problem=problem, problem_mark=self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Builder:
    """Builds values from nodes; aliases are copied, so that one can change without the others."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.open: set[int] = set()
        self.copies = 0

    def build(self, node: Node) -> Any:
        self.copies += id(node) in self.seen
        self.seen.add(id(node))
        if self.copies > COPIES:
            raise _error(node, f"aliases repeat more than {COPIES:,} values")
        if isinstance(node, ScalarNode):
            return self.scalar(node)
        if id(node) in self.open:
            raise _error(node, "an alias that refers to itself")
        if node.tag != TAGS[type(node)]:
            raise _tag(node)
        self.open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self.mapping(node)
            return [self.build(item) for item in node.value]
        finally:
            self.open.remove(id(node))

    def mapping(self, node: MappingNode) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        entries: dict[str, Any] = {}
        marks = set()
        for key, value in node.value:
            merges = key.tag == PLAIN and key.value == "<<"
            name = "<<" if merges else self.key(key)
            if (merges, name) in marks:
                raise _error(key, f"found the key {_cut(name)!r} twice")
            marks.add((merges, name))
            if merges:
                merged = self.merged(key, value)
            else:
                entries[name] = self.build(value)
        return merged | entries

    def merged(self, key: Node, value: Node) -> dict[str, Any]:
        """The entries that ``<<`` adds; of several maps, the first one with a key counts."""
        built = self.build(value)
        maps = built if isinstance(built, list) else [built]
        if not all(isinstance(entries, dict) for entries in maps):
            raise _error(key, "<< needs a map, or a list of maps, such as *name")
        return dict(ChainMap(*maps))

    def key(self, node: Node) -> str:
        if not isinstance(node, ScalarNode):
            raise _error(node, f"the key is a {_kind(node)}; expected a name")
        key = self.scalar(node, "the key ")
        if not isinstance(key, str):
            raise _error(node, f"the key {_cut(node.value)} {KEYS[type(key)]}")
        return key

    def scalar(self, node: ScalarNode, what: str = "") -> Any:
        text = node.value
        if strange := CONTROL.search(text):
            raise _error(node, f"{what}{_cut(text)!a} has the character {strange[0]!a}; expected text")
        if node.tag == TAGS[ScalarNode]:
            return text
        if node.tag == PLAIN:
            return self.plain(node, what)
        kind = node.tag.removeprefix(CORE)
        if not node.tag.startswith(CORE) or kind not in KINDS:
            raise _tag(node)
        value = self.plain(node, what)
        if type(value) not in KINDS[kind]:
            raise _error(node, f"{what}{_cut(text)} is not a value of the tag !!{kind}")
        return float(value) if kind == "float" else value

    def plain(self, node: ScalarNode, what: str) -> Any:
        text = node.value
        if text in NULLS:
            return None
        if text in TRUTHS:
            return TRUTHS[text]
        try:
            if WHOLE.fullmatch(text):
                return int(text, 16 if text.startswith("0x") else 10)
        except ValueError:  # Python's limit of digits
            raise _error(node, f"{what}a number of {len(text)} digits is too long") from None
        if REAL.fullmatch(text):
            return float(re.sub(r"\.(?=inf|nan)", "", text.lower()))
        tag = OLD.resolve(ScalarNode, "0" if NEWER.fullmatch(text) else text, (True, False))
        if problem := UNCLEAR.get(tag.removeprefix(CORE)):
            raise _error(node, f"{what}{_cut(text)} {problem}")
        return text


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _kind(node: Node) -> str:
    return "list" if isinstance(node, SequenceNode) else "map"


def _tag(node: Node) -> YamlError:
    tag = node.tag.replace(CORE, "!!")
    return _error(node, f"the tag {_cut(tag)} is not accepted; write the value without it")


def _error(node: Node, problem: str) -> YamlError:
    return YamlError(problem, node.start_mark.line + 1)
