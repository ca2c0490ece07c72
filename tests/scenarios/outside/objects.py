"""An object store over HTTP on the loopback device: `objects.py FILE`, FILE holding the settings as JSON.

Settings: late_ms before each answer, body_kb of each object, mb_s of each connection (0: as fast as it goes). Prints
its address.
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self):
        time.sleep(SETTINGS["late_ms"] / 1e3)
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        rate = SETTINGS["mb_s"] * 1e6
        for start in range(0, len(BODY), 65536):
            part = BODY[start : start + 65536]
            self.wfile.write(part)
            if rate:
                self.wfile.flush()
                time.sleep(len(part) / rate)

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        SETTINGS = json.load(file)
    BODY = bytes(int(SETTINGS["body_kb"]) * 1024)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print("{}:{}".format(*server.server_address), flush=True)
    server.serve_forever()
