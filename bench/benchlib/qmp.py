# SPDX-License-Identifier: Apache-2.0
"""A QMP client, as small as a benchmark wants it: one command at a time, events kept."""
import json
import os
import socket
import time


class QmpError(Exception):
    pass


def connect_unix(path, timeout, alive):
    """Connects as soon as somebody listens; alive() raises when nobody will."""
    deadline = time.monotonic() + timeout
    while True:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.connect(path)
            return end
        except OSError as error:
            end.close()
            alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f'{os.path.basename(path)}: {error.strerror}, '
                                   f'for {timeout} s') from error
        time.sleep(0.005)


class Qmp:
    def __init__(self, path, alive, timeout=10):
        self.socket = connect_unix(path, timeout, alive)
        self.buffer = b''
        self.events = []
        self.answer(timeout)    # the greeting
        self.command('qmp_capabilities')

    def close(self):
        self.socket.close()

    def object(self, deadline):
        while b'\n' not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError('no answer on the control socket')
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(65536)
            except socket.timeout:
                continue
            if not data:
                raise QmpError('the control socket was closed')
            self.buffer += data
        line, self.buffer = self.buffer.split(b'\n', 1)
        return json.loads(line)

    def answer(self, timeout):
        """The next object that is no event."""
        deadline = time.monotonic() + timeout
        while True:
            found = self.object(deadline)
            if 'event' not in found:
                return found
            self.events.append(found)

    def command(self, name, timeout=30, **arguments):
        request = {'execute': name}
        if arguments:
            request['arguments'] = arguments
        self.socket.settimeout(timeout)
        self.socket.sendall(json.dumps(request).encode() + b'\n')
        found = self.answer(timeout)
        if 'error' in found:
            raise QmpError(f'{name}: {found["error"].get("desc", found["error"])}')
        return found['return']

    def wait_event(self, matches, timeout):
        """The first event so far or to come for which matches(event)."""
        deadline = time.monotonic() + timeout
        at = 0
        while True:
            for event in self.events[at:]:
                if matches(event):
                    return event
            at = len(self.events)
            found = self.object(deadline)
            if 'event' in found:
                self.events.append(found)


def event_ns(event):
    """Time of day of an event, in nanoseconds."""
    stamp = event['timestamp']
    return stamp['seconds'] * 1000000000 + stamp['microseconds'] * 1000
