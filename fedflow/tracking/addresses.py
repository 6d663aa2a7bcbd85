"""Addresses of MLflow stores: files of SQLite as URLs and back, and addresses without their passwords."""

import re
from pathlib import Path

from fedflow.errors import FedflowError

SQLITE = re.compile(r"sqlite(\+pysqlite)?:///")
SPECIAL = re.compile(r"[%?\x00-\x1f\x7f]")  # characters of a path that mean something else in a URL
PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/]*@|(?<=[?&]password=)[^&]*")


def absolute(folder: Path | str) -> Path:
    """The absolute path of a folder; two slashes at its start would name a host in a URL.

    Raises `FedflowError` for a path that is not UTF-8: MLflow would use another folder.
    """
    path = Path("/" + str(Path(folder).resolve()).lstrip("/"))
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        byte = f"0x{ord(str(path)[error.start]) & 0xFF:02x}"
        shown = str(path).encode(errors="backslashreplace").decode()
        raise FedflowError(
            f"{shown}: the byte {byte} is not UTF-8, and MLflow cannot use this path"
        ) from None
    return path


def sqlite_url(file: Path, driver: str = "pysqlite") -> str:
    """The URL by which SQLAlchemy opens a SQLite file with any name.

    MLflow makes the folder of what follows ``sqlite:///``, as it is: a URL with quoted characters has to
    name its driver, so that no folder with a quoted name is made.
    """
    if not SPECIAL.search(str(file)) and driver == "pysqlite":
        return f"sqlite:///{file}"
    from sqlalchemy.engine import URL, make_url

    url = URL.create(f"sqlite+{driver}", database=str(file)).render_as_string()
    if make_url(url).database != str(file):  # SQLAlchemy before 2.1
        found = "".join(sorted({*SPECIAL.findall(str(file))}))
        raise FedflowError(f"{file}: SQLAlchemy before 2.1 cannot open a path with {found!r}")
    return url


def database(uri: str) -> Path | None:
    """The file of a SQLite store, None for any other store."""
    if not (scheme := SQLITE.match(uri)):
        return None
    if not SPECIAL.search(uri):
        return Path(uri[scheme.end() :]).resolve()
    from sqlalchemy.engine import make_url

    return Path(make_url(uri).database or "").resolve()


def is_server(uri: str) -> bool:
    """Whether a store is an MLflow server."""
    return uri.startswith(("http://", "https://"))


def shown(uri: str) -> str:
    """A store as messages name it: without a password, and a file by its path."""
    if SQLITE.match(uri) and (file := database(uri)):
        return f"sqlite:///{file}"
    return PASSWORD.sub(lambda found: f"{found[1]}:***@" if found[1] is not None else "***", uri)
