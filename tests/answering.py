"""A web server that answers as a test says."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


@contextmanager
def answering() -> Iterator[tuple[str, dict[str, Any]]]:
    """Its address, and what it says: `code`, `body`, `date`, `wants`.

    It keeps the headers of the last question under `asked`, and under `lines` what was asked.
    """
    says: dict[str, Any] = {"code": 200, "body": '{"experiments": []}', "date": None, "lines": []}

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            says["asked"] = dict(self.headers)
            says["lines"].append(f"{self.command} {self.path}")
            welcome = says.get("wants") in (None, self.headers["Authorization"])
            self.send_response_only(says["code"] if welcome else 401)
            self.send_header("Date", formatdate(says["date"], usegmt=True))
            self.end_headers()
            self.wfile.write(says["body"].encode())

        do_GET = do_PUT = do_POST = _answer  # noqa: N815 - as http.server calls them

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}", says
        http.shutdown()
        thread.join()
