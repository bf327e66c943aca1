#!/usr/bin/env python3
"""A server of the S3 protocol (moto) for tests, that fails on demand.

Prints its port. `GET /_control?fault=NAME` sets the fault (none, slow, denied, region, no-bucket, expired, no-list, meet) and answers the
requests since the last time, by method, as JSON. With `meet` the next two puts of snapshots wait for one another (counted as `met`).
"""
import collections
import json
import logging
import sys
import threading
import urllib.parse

FAULTS = {
    "slow": ("503 Slow Down", "SlowDown", "Please reduce your request rate."),
    "denied": ("403 Forbidden", "AccessDenied", "Access Denied"),
    "region": ("400 Bad Request", "AuthorizationHeaderMalformed", "the region 'us-east-1' is wrong; expecting 'eu-west-1'"),
    "no-bucket": ("404 Not Found", "NoSuchBucket", "The specified bucket does not exist"),
    "expired": ("400 Bad Request", "ExpiredToken", "The provided token has expired."),
    "no-list": ("403 Forbidden", "AccessDenied", "Access Denied"),
}


class Faults:
    def __init__(self, inner):
        self.inner, self.fault, self.lock, self.requests = inner, "none", threading.Lock(), collections.Counter()
        # A conditional put is one step of a store; it is two of moto's.
        self.step = threading.Lock()
        self.meeting = None

    def hits(self, method, query):
        if self.fault == "denied":
            return method in ("PUT", "POST", "DELETE")
        if self.fault == "meet":
            return False
        if self.fault == "no-list":
            return method == "GET" and "list-type" in query
        return self.fault != "none"

    def meet(self, environ):
        """Returns when two have come to put a snapshot that must not be there yet."""
        with self.lock:
            is_put = environ["REQUEST_METHOD"] == "PUT" and "HTTP_IF_NONE_MATCH" in environ and "/snapshot/snapshot-" in environ["PATH_INFO"]
            meeting = self.meeting
            if not is_put or not meeting or self.requests["met"] == 2:
                return
            self.requests["met"] += 1
        meeting.wait(timeout=60)

    def __call__(self, environ, start_response):
        method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
        if environ["PATH_INFO"] == "/_control":
            with self.lock:
                self.fault = urllib.parse.parse_qs(query).get("fault", [self.fault])[0]
                seen, self.requests = self.requests, collections.Counter()
                self.meeting = threading.Barrier(2) if self.fault == "meet" else None
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(seen).encode()]
        with self.lock:
            self.requests["LIST" if "list-type" in query else method] += 1
            hit = self.hits(method, query)
        if not hit:
            self.meet(environ)
            with self.step:
                return self.inner(environ, start_response)
        status, code, message = FAULTS[self.fault]
        length = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"].read(length)
        start_response(status, [("Content-Type", "application/xml")])
        return [f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'.encode()]


def main():
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, Faults(DomainDispatcherApplication(create_backend_app)), threaded=True)
    print(server.port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
