# SPDX-License-Identifier: Apache-2.0
"""A QMP client that waits for a bounded time, and can also be as rude as a test needs."""
import contextlib
import json
import socket
import time


class QmpError(Exception):
    """An error answer: .kind is its class, .desc its text."""

    def __init__(self, error):
        super().__init__(error["desc"])
        self.kind = error["class"]
        self.desc = error["desc"]


class Qmp:
    """One connection. Not for several threads at once."""

    def __init__(self, path, negotiate=True, oob=False, timeout=10.0):
        self.timeout = timeout
        self.buffer = ""
        self.events = []  # as they came, and not yet fetched by event()
        self.count = 0
        self.decoder = json.JSONDecoder()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect(str(path))
            self.greeting = self.read()
            if negotiate:
                self.execute("qmp_capabilities", **({"enable": ["oob"]} if oob else {}))
        except BaseException:
            self.close()
            raise

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, data):
        self.socket.sendall(data)

    def read(self, timeout=None):
        """The next message, answer or event; None at the end of the stream."""
        end = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            self.buffer = self.buffer.lstrip()
            with contextlib.suppress(json.JSONDecodeError):
                message, used = self.decoder.raw_decode(self.buffer)
                self.buffer = self.buffer[used:]
                return message
            self.socket.settimeout(max(0.001, end - time.monotonic()))
            try:
                data = self.socket.recv(1 << 16)
            except socket.timeout:
                raise TimeoutError(f"no message on the control socket; so far: {self.buffer!r}") from None
            finally:
                self.socket.settimeout(self.timeout)
            if not data:
                return None
            self.buffer += data.decode()

    def answer(self, timeout=None):
        """The next answer; events that come before it are kept."""
        while True:
            message = self.read(timeout)
            if message is None or "event" not in message:
                return message
            self.events.append(message)

    def raw(self, data):
        self.send(data if isinstance(data, bytes) else json.dumps(data).encode())
        return self.answer()

    def execute(self, command, timeout=None, descriptor=None, **arguments):
        """Runs a command and returns its result; in the names of arguments "_" stands for "-".
        timeout: for the answer. descriptor: a file descriptor to send along."""
        self.count += 1
        request = {"execute": command, "id": self.count}
        if arguments:
            request["arguments"] = {name.replace("_", "-"): value for name, value in arguments.items()}
        return self.command(request, timeout, descriptor)

    def command(self, request, timeout=None, descriptor=None):
        data = json.dumps(request).encode()
        if descriptor is None:
            self.send(data)
        else:
            socket.send_fds(self.socket, [data], [descriptor])
        while True:
            answer = self.answer(timeout)
            if answer is None:
                raise ConnectionResetError("the server closed the connection")
            if answer.get("id") == request.get("id") or "id" not in answer:
                break  # any other is the late answer to a request whose time was up
        if "error" in answer:
            raise QmpError(answer["error"])
        return answer["return"]

    def event(self, name, timeout=10.0, **data):
        """Waits for an event of this name and, if given, with this data; others are kept."""
        def fits(event):
            have = event.get("data", {})
            return event["event"] == name and all(
                have.get(key.replace("_", "-")) == value for key, value in data.items())

        end = time.monotonic() + timeout
        while True:
            for index, event in enumerate(self.events):
                if fits(event):
                    return self.events.pop(index)
            try:
                message = self.read(max(0.001, end - time.monotonic()))
            except TimeoutError:
                raise TimeoutError(f"no event {name} {data or ''} within {timeout} s; "
                                   f"there were: {self.events}") from None
            if message is None:
                raise ConnectionResetError("the server closed the connection")
            if "event" in message:
                self.events.append(message)

    def wait_migration(self, *statuses, timeout=30):
        """Asks query-migrate until its status is one of these (none given: an end); the last answer."""
        statuses = statuses or ("completed", "failed", "cancelled")
        end = time.monotonic() + timeout
        while True:
            info = self.execute("query-migrate")
            if info.get("status") in statuses:
                return info
            if time.monotonic() > end:
                raise TimeoutError(f"migration not {' or '.join(statuses)} within {timeout} s: {info}")
            time.sleep(0.005)

    def wait_state(self, state, timeout=10):
        """Asks query-status until the machine is in this run state."""
        end = time.monotonic() + timeout
        while (info := self.execute("query-status"))["status"] != state:
            if time.monotonic() > end:
                raise TimeoutError(f"not {state} within {timeout} s: {info}")
            time.sleep(0.005)
