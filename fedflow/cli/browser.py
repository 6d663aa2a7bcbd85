"""``python -m fedflow.cli.browser <address>`` opens a page in a browser once its server answers."""

import os
import socket
import sys
import time
import webbrowser
from urllib.parse import urlsplit


def open_page(address: str) -> None:
    """Open ``address`` in a browser when its server accepts connections, unless the parent process ends."""
    parent, server = os.getppid(), urlsplit(address)
    while os.getppid() == parent:
        try:
            socket.create_connection((server.hostname, server.port)).close()
        except OSError:
            time.sleep(0.2)
            continue
        if not webbrowser.open(address):
            print("no browser was found", file=sys.stderr)
        return


if __name__ == "__main__":
    open_page(sys.argv[1])
