"""A bucket of Cloud Storage on this machine, which can be out of order for a while."""

import contextlib
import functools
import http.server
import logging
import threading
import time
from urllib.parse import parse_qs, unquote, urlparse

from gcp_storage_emulator import exceptions, server, storage
from gcp_storage_emulator.handlers.buckets import create_bucket

NAME = "bucket"


class Bucket:
    """What is in gs://bucket, and how its service answers.

    Attributes:
      environment: of a process that finds it.
      down_until: on time.monotonic(); until then every request is refused.
      answer: to a request that is: 503 asks for another attempt, 403 does not.
      refused: how many were.
    """

    def __init__(self, port: int):
        address = f"http://localhost:{port}"
        self.environment = {
            "STORAGE_EMULATOR_HOST": address,  # for gcsfs
            "TENSORSTORE_GCS_HTTP_URL": address,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",  # for TensorStore
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # else it asks for credentials
        }
        self.down_until, self.answer, self.refused = 0.0, 503, 0


class _Handler(server.RequestHandler):
    """The emulator, and what TensorStore needs beyond it: generations of objects, and writes on
    condition of them.
    """

    def __init__(self, bucket, *arguments):
        self.bucket = bucket
        super().__init__(*arguments)

    def log_message(self, *arguments):
        pass

    def parse_request(self):
        if not super().parse_request():
            return False
        wanted = parse_qs(urlparse(self.path).query)
        answer = None
        if time.monotonic() < self.bucket.down_until:
            self.bucket.refused += 1
            answer = self.bucket.answer
        elif wanted.get("ifGenerationMatch", [self.generation()]) != [self.generation()]:
            answer = 412
        elif wanted.get("ifGenerationNotMatch") == [self.generation()]:
            answer = 304
        if answer:
            self.close_connection = True
            self.send_error(answer)
        return answer is None

    def end_headers(self):
        self.send_header("x-goog-generation", self.generation())
        super().end_headers()

    def generation(self):
        """Of the object that is asked for, "0" where there is none."""
        url = urlparse(self.path)
        names = parse_qs(url.query).get("name") or [unquote(url.path.partition("/o/")[2])]
        try:
            return self.storage.get_file_obj(NAME, names[0])["generation"]
        except exceptions.NotFound:
            return "0"


class _Server(http.server.HTTPServer):
    def handle_error(self, *arguments):
        pass  # of a client that was killed, or had read enough


@contextlib.contextmanager
def served():
    """A bucket, as long as this lasts."""
    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    kept = storage.Storage(use_memory_fs=True)
    create_bucket(NAME, kept)
    with _Server(("localhost", 0), None) as httpd:
        bucket = Bucket(httpd.server_port)
        httpd.RequestHandlerClass = functools.partial(_Handler, bucket, kept)
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        yield bucket
        httpd.shutdown()
