# SPDX-License-Identifier: Apache-2.0
"""A small QMP client that can also be as rude as a test needs."""
import json
import socket
import time


class QmpError(Exception):
    def __init__(self, error):
        super().__init__(error["desc"])
        self.kind = error["class"]
        self.desc = error["desc"]


class Qmp:
    def __init__(self, path, negotiate=True, oob=False, timeout=10.0):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        self.socket.connect(str(path))
        self.buffer = b""
        self.events = []
        self.greeting = self.read()
        if negotiate:
            self.execute("qmp_capabilities", **({"enable": ["oob"]} if oob else {}))

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, data):
        self.socket.sendall(data)

    def read(self):
        """The next message, answer or event; None at the end of the stream."""
        while b"\n" not in self.buffer:
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def answer(self):
        while True:
            message = self.read()
            if message is None or "event" not in message:
                return message
            self.events.append(message)

    def raw(self, data):
        self.send(data if isinstance(data, bytes) else json.dumps(data).encode())
        return self.answer()

    def execute(self, command, **arguments):
        request = {"execute": command}
        if arguments:
            request["arguments"] = arguments
        return self.command(request)

    def command(self, request):
        answer = self.raw(request)
        if answer is None:
            raise ConnectionResetError("the server closed the connection")
        if "error" in answer:
            raise QmpError(answer["error"])
        return answer["return"]

    def event(self, name, timeout=10.0):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            while self.events:
                event = self.events.pop(0)
                if event["event"] == name:
                    return event
            self.events.append(self.read())
        raise TimeoutError(name)
