"""A small web service for the examples: `GET /figures?topic=T` answers with figures, `POST /mail` takes a mail and answers with a number.

Usage: python3 service.py PORT_FILE. Listens on a free port of this machine and writes the port into the file.
A request that repeats an Idempotency-Key gets the answer of the first one: no mail is sent twice.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

SENT = {}


class Service(BaseHTTPRequestHandler):
    def do_GET(self):
        topic = parse_qs(urlparse(self.path).query).get("topic", ["?"])[0]
        self.answer({"topic": topic, "figures": [3, 5, 8], "readers": ["ann", "bob"]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = SENT.setdefault(self.headers.get("Idempotency-Key"), len(SENT) + 1)
        self.answer({"number": number, "to": body["to"]})

    def answer(self, document):
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
with open(sys.argv[1], "w") as file:
    file.write(str(server.server_port))
server.serve_forever()
