# SPDX-License-Identifier: Apache-2.0
"""What all system tests share: the binary, a bound on every test, and a check for leftovers."""
import os
import signal
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import godwit  # noqa: E402  (the folder is put on the path first)

DEFAULT_SECONDS = 60


def pytest_configure(config):
    config.addinivalue_line('markers', f'seconds(n): the test must end within n seconds '
                                       f'(default {DEFAULT_SECONDS})')


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """A test that hangs fails by name, instead of stopping the whole run."""
    marker = item.get_closest_marker('seconds')
    seconds = marker.args[0] if marker else DEFAULT_SECONDS

    def late(signum, frame):
        raise TimeoutError(f'{item.name} did not end within {seconds} s')

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope='session', autouse=True)
def binary():
    path = godwit.binary()
    if not os.access(path, os.X_OK):
        pytest.exit(f'{path}: not there; build it with "make", or name it in GODWIT', returncode=2)
    return path


@pytest.fixture(autouse=True)
def no_process_left():
    """Every test ends what it started."""
    yield
    left = godwit.children(os.getpid())
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert not left, f'processes left behind: {left}'


@pytest.fixture
def folder():
    """A short-named temporary folder: socket paths are limited to 107 bytes."""
    with godwit.temporary_folder() as path:
        yield path


@pytest.fixture
def machine(folder):
    """Makes machines, and ends them with the test: machine('--memory', '64M', ...)."""
    started = []

    def start(*arguments, **options):
        options.setdefault('name', f'vm{len(started)}')
        one = godwit.Machine(*arguments, folder=folder, **options)
        started.append(one)
        return one.start()

    yield start
    for one in reversed(started):
        one.end()
