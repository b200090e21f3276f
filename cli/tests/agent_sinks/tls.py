"""Serves HTTPS and gRPC with a certificate of an authority that it makes.

Usage: tls.py DIRECTORY

Writes the authority's certificate into ca.pem of the directory, prints the ports of HTTPS and gRPC, and a line for each
request that was served: its name, and the length of its body.
"""
import http.server
import ssl
import sys
import threading
from concurrent import futures
from pathlib import Path

import grpc
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


def export(request, context):
    print('Export', len(request), flush=True)
    return b''


web = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
certificate.configure_cert(context)
web.socket = context.wrap_socket(web.socket, server_side=True)
threading.Thread(target=web.serve_forever, daemon=True).start()

server = grpc.server(futures.ThreadPoolExecutor(1), options=[('grpc.max_receive_message_length', 64 << 20)])
handlers = {'Export': grpc.unary_unary_rpc_method_handler(export)}
service = 'opentelemetry.proto.collector.profiles.v1development.ProfilesService'
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
chain = b''.join(part.bytes() for part in certificate.cert_chain_pems)
port = server.add_secure_port(
    '127.0.0.1:0', grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)])
)
server.start()
print(web.server_port, port, flush=True)
server.wait_for_termination()
