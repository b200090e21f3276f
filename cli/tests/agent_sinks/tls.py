"""Serves HTTPS with a certificate of an authority that it makes.

Usage: tls.py DIRECTORY

Writes the authority's certificate into ca.pem of the directory, prints the port, and a line for each request that was
served: its path, and the length of its body.
"""
import http.server
import ssl
import sys
from pathlib import Path

import trustme

directory = Path(sys.argv[1])
authority = trustme.CA()
authority.cert_pem.write_to_path(str(directory / 'ca.pem'))
certificate = authority.issue_cert('localhost')


class Handler(http.server.BaseHTTPRequestHandler):
    def served(self):
        length = int(self.headers['Content-Length'])
        print(self.path, len(self.rfile.read(length)), flush=True)
        self.send_response(200)
        self.send_header('ETag', '"1"')
        self.send_header('Content-Type', 'application/x-protobuf')
        self.send_header('Content-Length', '0')
        self.end_headers()

    do_POST = do_PUT = served

    def log_message(self, *words):
        pass


web = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
certificate.configure_cert(context)
web.socket = context.wrap_socket(web.socket, server_side=True)
print(web.server_port, flush=True)
web.serve_forever()
