"""Databases as MLflow stores: their drivers, and one question before MLflow asks again for minutes."""

import re

from fedflow.errors import FedflowError
from fedflow.tracking.addresses import shown

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


def is_database(uri: str) -> bool:
    """Whether a store is a database other than SQLite."""
    return DATABASE.match(uri) is not None


def ask(uri: str) -> None:
    """Connect to a database once. `FedflowError` without its driver or an answer, or if it refuses."""
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
        said = str(getattr(error, "orig", error)).strip() or type(error).__name__
        raise FedflowError(
            f"MLflow store {shown(uri)}: cannot connect ({shown(said.splitlines()[0])})"
        ) from None
    finally:
        engine.dispose()
