"""A model server that starts in a blink and answers slowly: what the soak tests swap thousands of times.

POST: names the model it serves, plain or as a stream of 20 events, 10 ms apart. A thread for each connection and the
smallest modules that do, because the start is what the tests wait for.
"""

import socket
import sys
import threading
import time

EVENTS = 20
INTERVAL_S = 0.01


def serve_connection(connection: socket.socket, name: bytes) -> None:
    """Answer requests on one connection until the client leaves."""
    with connection, connection.makefile("rb") as requests:
        try:
            while requests.readline():
                length = 0
                while (line := requests.readline().lower()) not in (b"\r\n", b""):
                    if line.startswith(b"content-length:"):
                        length = int(line[15:])
                body = requests.read(length)
                if b'"stream": true' in body:
                    stream(connection, name)
                else:
                    text = b'{"served_by": "%s"}' % name
                    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    connection.sendall(head % len(text) + text)
        except OSError:
            return


def stream(connection: socket.socket, name: bytes) -> None:
    """Send server-sent events with chunked framing."""
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    event = b'data: {"served_by": "%s"}\n\n' % name
    for _ in range(EVENTS):
        connection.sendall(b"%x\r\n%s\r\n" % (len(event), event))
        time.sleep(INTERVAL_S)
    connection.sendall(b"0\r\n\r\n")


def main(port: int, name: bytes) -> None:
    """Serve until killed."""
    with socket.create_server(("127.0.0.1", port), backlog=1024) as server:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=serve_connection, args=(connection, name), daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].encode())
