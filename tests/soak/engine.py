"""A model server that starts in a blink and answers slowly: what the soak tests swap and kill thousands of times.

POST: names the model it serves, and the user if the request has one, plain or as a stream of 20 events, by default
10 ms apart. A thread for each connection and the smallest modules that do, because the start is what the tests wait
for. Usage: engine.py PORT NAME [SECONDS BETWEEN EVENTS]
"""

import socket
import sys
import threading
import time

EVENTS = 20
INTERVAL_S = 0.01
USER = b'"user": "'


def serve_connection(connection: socket.socket, name: bytes, interval_s: float) -> None:
    """Answer requests on one connection until the client leaves."""
    with connection, connection.makefile("rb") as requests:
        try:
            while requests.readline():
                length = 0
                while (line := requests.readline().lower()) not in (b"\r\n", b""):
                    if line.startswith(b"content-length:"):
                        length = int(line[15:])
                body = requests.read(length)
                user = body.partition(USER)[2].partition(b'"')[0]
                text = b'{"served_by": "%s"}' % name
                if user:
                    text = b'{"served_by": "%s", "user": "%s"}' % (name, user)
                if b'"stream": true' in body:
                    stream(connection, text, interval_s)
                else:
                    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    connection.sendall(head % len(text) + text)
        except OSError:
            return


def stream(connection: socket.socket, text: bytes, interval_s: float) -> None:
    """Send server-sent events with chunked framing."""
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    event = b"data: %s\n\n" % text
    for _ in range(EVENTS):
        connection.sendall(b"%x\r\n%s\r\n" % (len(event), event))
        time.sleep(interval_s)
    connection.sendall(b"0\r\n\r\n")


def main(port: int, name: bytes, interval_s: float) -> None:
    """Serve until killed."""
    with socket.create_server(("127.0.0.1", port), backlog=1024) as server:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=serve_connection, args=(connection, name, interval_s), daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].encode(), float(sys.argv[3]) if len(sys.argv) > 3 else INTERVAL_S)
