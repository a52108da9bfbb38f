"""A local emulation of a Cloud Storage bucket, with temporary outages."""

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
    """The bucket gs://bucket and the state of its service.

    Attributes:
      environment: environment variables of a process that uses the bucket.
      down_until: end of the outage on the clock of time.monotonic(); until then the service refuses
        all requests.
      answer: status of refused requests: clients retry after 503, but not after 403.
      refused: number of refused requests.
    """

    def __init__(self, port: int):
        address = f"http://localhost:{port}"
        self.environment = {
            "STORAGE_EMULATOR_HOST": address,  # for gcsfs
            "TENSORSTORE_GCS_HTTP_URL": address,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",  # for TensorStore
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # otherwise it requires credentials
        }
        self.down_until, self.answer, self.refused = 0.0, 503, 0


class _Handler(server.RequestHandler):
    """The emulator, with object generations and conditional writes, which TensorStore requires."""

    def __init__(self, bucket, *arguments):
        self.bucket = bucket
        super().__init__(*arguments)

    def log_message(self, *arguments):
        pass

    def parse_request(self):
        if not super().parse_request():
            return False
        query = parse_qs(urlparse(self.path).query)
        answer = None
        if time.monotonic() < self.bucket.down_until:
            self.bucket.refused += 1
            answer = self.bucket.answer
        elif query.get("ifGenerationMatch", [self.generation()]) != [self.generation()]:
            answer = 412
        elif query.get("ifGenerationNotMatch") == [self.generation()]:
            answer = 304
        if answer:
            self.close_connection = True
            self.send_error(answer)
        return answer is None

    def end_headers(self):
        self.send_header("x-goog-generation", self.generation())
        super().end_headers()

    def generation(self):
        """The generation of the requested object; "0" if it does not exist."""
        url = urlparse(self.path)
        names = parse_qs(url.query).get("name") or [unquote(url.path.partition("/o/")[2])]
        try:
            return self.storage.get_file_obj(NAME, names[0])["generation"]
        except exceptions.NotFound:
            return "0"


class _Server(http.server.HTTPServer):
    def handle_error(self, *arguments):
        pass  # the client was killed or closed the connection early


@contextlib.contextmanager
def served():
    """Serves a bucket while the context is active."""
    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    memory = storage.Storage(use_memory_fs=True)
    create_bucket(NAME, memory)
    with _Server(("localhost", 0), None) as httpd:
        bucket = Bucket(httpd.server_port)
        httpd.RequestHandlerClass = functools.partial(_Handler, bucket, memory)
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        yield bucket
        httpd.shutdown()
