"""Addresses of MLflow stores: SQLite files as URLs and back, databases, and addresses without passwords."""

import re
from pathlib import Path
from urllib.parse import urlsplit

from fedflow.errors import FedflowError

SQLITE = re.compile(r"sqlite(\+pysqlite)?:///")
SPECIAL = re.compile(r"[%?\x00-\x1f\x7f]")  # characters of a path that mean something else in a URL
DATABASE = re.compile(r"(postgresql|mysql|mssql)(\+\w+)?://")
ANSWER_TIMEOUT = 10  # seconds
PACKAGES = {  # by module
    "psycopg": "psycopg[binary] (extra postgres)",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient, or pymysql with an address that begins with mysql+pymysql://",
}
LIMITS = {  # arguments by which drivers limit how long they wait for an answer
    **dict.fromkeys(("psycopg", "psycopg2", "asyncpg"), ("connect_timeout",)),
    **dict.fromkeys(("pymysql", "mysqldb"), ("connect_timeout", "read_timeout")),
    "pyodbc": ("timeout",),
}
PASSWORD = re.compile(
    r"(?<=://)([^/@:]*):[^/]*@|(?<![a-z])((?:ssl)?password|passwd|pwd|odbc_connect)=[^&]*", re.I
)


def absolute(folder: Path | str) -> Path:
    """The absolute path of a folder; two slashes at its start would name a host in a URL.

    Raises `FedflowError` for a path that is not UTF-8: MLflow would use another folder.
    """
    path = Path("/" + str(Path(folder).resolve()).lstrip("/"))
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        byte = f"0x{ord(str(path)[error.start]) & 0xFF:02x}"
        text = str(path).encode(errors="backslashreplace").decode()
        raise FedflowError(f"{text}: the byte {byte} is not UTF-8, and MLflow cannot use this path") from None
    return path


def sqlite_url(file: Path, driver: str = "pysqlite") -> str:
    """The URL by which SQLAlchemy opens a SQLite file with any name.

    MLflow makes the folder that follows ``sqlite:///``, unquoted: a URL with quoted characters has to name
    its driver, so that no folder with a quoted name is made.
    """
    if not SPECIAL.search(str(file)) and driver == "pysqlite":
        return f"sqlite:///{file}"
    from sqlalchemy.engine import URL, make_url

    url = URL.create(f"sqlite+{driver}", database=str(file)).render_as_string()
    if make_url(url).database != str(file):  # SQLAlchemy before 2.1
        special = "".join(sorted({*SPECIAL.findall(str(file))}))
        raise FedflowError(f"{file}: SQLAlchemy before 2.1 cannot open a path with {special!r}")
    return url


def database(uri: str) -> Path | None:
    """The file of a SQLite store, or None for any other store."""
    if not (scheme := SQLITE.match(uri)):
        return None
    if not SPECIAL.search(uri):
        return Path(uri[scheme.end() :]).resolve()
    from sqlalchemy.engine import make_url

    return Path(make_url(uri).database or "").resolve()


def is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def shown(uri: str) -> str:
    """A store for messages: without a password, and a file by its path."""
    if SQLITE.match(uri) and (file := database(uri)):
        return f"sqlite:///{file}"
    return PASSWORD.sub(lambda match: f"{match[2]}=***" if match[2] else f"{match[1]}:***@", uri)


def server_address(uri: str) -> str:
    """The address of a server, without a password."""
    given = urlsplit(uri.rstrip("/"))
    return given._replace(netloc=given.netloc.rpartition("@")[2]).geturl()


def is_database(uri: str) -> bool:
    """True for a database other than SQLite."""
    return DATABASE.match(uri) is not None


def ask(uri: str) -> None:
    """Connect to a database once, before MLflow retries for minutes. Raises `FedflowError` if that fails."""
    from sqlalchemy import create_engine
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        url = make_url(uri)
        limits = LIMITS.get(url.get_dialect().driver, ())
        engine = create_engine(url, connect_args=dict.fromkeys(limits, ANSWER_TIMEOUT))
    except ImportError as error:
        package = PACKAGES.get(error.name or "", error.name)
        raise FedflowError(
            f"MLflow store {shown(uri)}: the driver of this database is missing; install {package}"
        ) from None
    try:
        engine.connect().close()
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).strip() or type(error).__name__
        raise FedflowError(
            f"MLflow store {shown(uri)}: cannot connect ({shown(reason.splitlines()[0])})"
        ) from None
    finally:
        engine.dispose()
