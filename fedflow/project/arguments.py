"""Checks of parameters of experiments and flows."""

import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedflow.errors import BadInput
from fedflow.settings import check

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{,127}")  # file systems allow 255 bytes, suffixes included
NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters, surrogates
PART, PATH = 255, 4096  # bytes that file systems allow in one part of a path, and in the whole path
WHOLE = {"bounds": {"ge": 0}}

ARGUMENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "partition": (str, {}),
    "method": (str, {}),
    "seed": (int, WHOLE),
    "partitions": (list[str] | None, {}),
    "methods": (list[str] | None, {}),
    "seeds": (list[int] | None, WHOLE),
    "settings": (list[str] | None, {}),
    "root": (str, {}),
    "out": (str | None, {}),
    "sweep": (str | None, {}),
    "name": (str, {}),
    "write": (bool, {}),
}
NAMES = ("sweep", "name")  # they become parts of paths, and keys of other tools


def argument(name: str, value: Any) -> Any:
    """The value of a parameter of `ARGUMENTS`, with NumPy numbers and paths made plain; raises `BadInput`."""
    hint, bounds = ARGUMENTS[name]
    value = str(value) if isinstance(value, Path) else value
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str):
            _check_text(name, text)
    value = check(name, value, hint, bounds)
    if isinstance(value, list) and name != "settings":
        check_once(name, value)
    return value if value is None or name not in NAMES else check_name(name, value)


def _check_text(name: str, text: str) -> None:
    """Raise `BadInput` for text that is neither a name nor a path."""
    if text == "":
        raise BadInput(name, text, "text that is not empty")
    if NO_TEXT.search(text):
        raise BadInput(name, text, "text without control characters")
    if name in ("root", "out"):
        longest = max(len(part.encode()) for part in text.split("/"))
        if longest > PART or len(text.encode()) > PATH:
            raise BadInput(name, text, f"a path of up to {PATH} bytes, and {PART} in each part")


OURS = (  # folders of a project
    *("data", "landscapes", "mlruns", "outcomes", "report", "results", "runs"),
    *(".dvc", ".fedflow", ".git", ".prefect"),
)


def check_arguments(**given: Any) -> None:
    """Raise `BadInput` for the first parameter with a value that is not accepted."""
    for name, value in given.items():
        argument(name, value)
    if not (out := given.get("out")):
        return
    folder, root = Path(out).resolve(), Path(given["root"]).resolve()
    if root.is_relative_to(folder):
        raise BadInput("out", str(out), "a folder without the project, whose files would be recorded, too")
    if folder.is_relative_to(root) and folder.relative_to(root).parts[0] in OURS:
        raise BadInput("out", str(out), f"a folder outside {', '.join(OURS)}")


def check_name(field: str, value: Any) -> str:
    """``value`` if it can name a dataset, partition or sweep, which become folders; else `BadInput`."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        accepted = "a name of letters, digits and - _ . that does not start with a dot, 128 at most"
        raise BadInput(field, value, accepted)
    return value


def check_address(field: str, value: str) -> str:
    """``value`` if it is the address of a web server; else `BadInput`."""
    try:
        address = urlsplit(value)
        good = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:
        good = False
    if not good:
        raise BadInput(field, value, "an address such as http://127.0.0.1:4200/api")
    return value


def check_port(field: str, port: int) -> int:
    """``port`` if a server can listen there on localhost, 0 being any free port; else `BadInput`."""
    try:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
    except OverflowError:
        raise BadInput(field, port, "a port from 0 to 65535") from None
    except OSError as error:
        raise BadInput(field, port, f"a free port ({error.strerror})") from error
    return port


def check_once(field: str, values: list[Any]) -> None:
    """Raise `BadInput` for a repeated item; names become folders and must differ in more than capitals."""
    seen: dict[Any, Any] = {}
    for value in values:
        key = value.casefold() if isinstance(value, str) else value
        if key in seen:
            same = seen[key] == value
            accepted = f"names that differ from {seen[key]!r} in more than capitals, as they become folders"
            raise BadInput(field, value, "every item once" if same else accepted)
        seen[key] = value
