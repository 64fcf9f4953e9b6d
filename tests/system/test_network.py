# SPDX-License-Identifier: Apache-2.0
"""Moves between two hosts: network namespaces joined by a veth pair that carries 1 Gbit/s."""
import contextlib
import os
import shutil
import subprocess
import time

import pytest

import godwit
from test_migration import assert_alive_and_right, guest_check, ready

MOVES = int(os.environ.get('GODWIT_MOVES', '4'))

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which('tc'),
                                reason='needs root and iproute2 to make network namespaces')


def ip(*words):
    subprocess.run(['ip', *words], check=True, capture_output=True, text=True)


class Hosts:
    """Two namespaces; .inside(n) is the prefix of a command there, .address(n) its address."""

    def __init__(self):
        self.names = [f'gw-{os.getpid()}-{n}' for n in (0, 1)]
        self.links = [f'gw{os.getpid() % 100000}{n}' for n in ('a', 'b')]

    def __enter__(self):
        try:
            for name in self.names:
                ip('netns', 'add', name)
            ip('link', 'add', self.links[0], 'type', 'veth', 'peer', 'name', self.links[1])
            for n, (name, link) in enumerate(zip(self.names, self.links)):
                ip('link', 'set', link, 'netns', name)
                ip('-n', name, 'address', 'add', f'{self.address(n)}/30', 'dev', link)
                ip('-n', name, 'link', 'set', link, 'up')
                ip('-n', name, 'link', 'set', 'lo', 'up')
                subprocess.run(['tc', '-n', name, 'qdisc', 'add', 'dev', link, 'root', 'tbf', 'rate', '1gbit',
                                'burst', '256kb', 'latency', '50ms'], check=True, capture_output=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip('netns', 'delete', name)

    def address(self, n):
        return f'192.0.2.{n + 1}'

    def inside(self, n):
        return ['ip', 'netns', 'exec', self.names[n]]

    def link(self, n, state):
        ip('-n', self.names[n], 'link', 'set', self.links[n], state)


@pytest.fixture
def hosts():
    with Hosts() as two:
        yield two


def start(machine, hosts, n, *arguments, **options):
    return machine('--insecure', *arguments, wrapper=hosts.inside(n), serial=True, **options)


def arriving(machine, hosts, n, name):
    destination = start(machine, hosts, n, '--incoming', f'tcp:{hosts.address(n)}:0', name=name)
    port = destination.qmp.execute('query-migrate')['socket-address'][0]['port']
    return destination, f'tcp:{hosts.address(n)}:{port}'


@pytest.mark.seconds(60 + 10 * MOVES)
def test_to_and_fro_between_hosts(machine, hosts):
    vm = start(machine, hosts, 0, '--guest', 'stress,hot=4M,fill=48M,interval=100,cpus=2', '--memory', '128M',
               '--cpus', '2')
    ready(vm)
    for number in range(MOVES):
        destination, uri = arriving(machine, hosts, (number + 1) % 2, f'n{number}')
        info = vm.migrate(uri)
        assert info['status'] == 'completed', info
        # 1 Gbit/s is 119 MiB/s; the token bucket and the socket hold a little more than nothing.
        seconds = info['total-time'] / 1000
        assert info['ram']['transferred'] / seconds < 160 << 20
        assert info['downtime'] <= 400
        vm.qmp.execute('quit')
        assert vm.wait() == 0
        vm = destination
    assert_alive_and_right(vm)


@pytest.mark.seconds(120)
def test_link_down_in_the_middle(machine, hosts):
    source = start(machine, hosts, 0, '--guest', 'stress,hot=4M,fill=400M,interval=100', '--memory', '512M')
    ready(source)
    destination, uri = arriving(machine, hosts, 1, 'b')
    source.qmp.execute('migrate', uri=uri)
    source.qmp.wait_migration('active')
    time.sleep(0.5)
    hosts.link(1, 'down')
    began = time.monotonic()
    info = source.qmp.wait_migration(timeout=40)
    assert info['status'] == 'failed' and info['error-desc'], info
    assert time.monotonic() - began < 35
    assert source.qmp.execute('query-status')['status'] == 'running'
    assert destination.wait(timeout=60) == 1
    assert 'silent' in destination.stderr or 'connection' in destination.stderr
    hosts.link(1, 'up')
    second, uri = arriving(machine, hosts, 1, 'c')
    assert source.migrate(uri)['status'] == 'completed'
    assert guest_check(second)[0] == 0


def test_nobody_at_that_address(machine, hosts):
    source = start(machine, hosts, 0, '--guest', 'stress,hot=4M', '--memory', '64M')
    info = source.migrate(f'tcp:{hosts.address(1)}:9')
    assert info['status'] == 'failed' and 'refused' in info['error-desc']
    assert source.qmp.execute('query-status')['status'] == 'running'
    # The address exists, and nothing comes back: bounded all the same.
    hosts.link(1, 'down')
    began = time.monotonic()
    info = source.migrate(f'tcp:{hosts.address(1)}:9', timeout=30)
    assert info['status'] == 'failed'
    assert time.monotonic() - began < 20
    assert godwit.alive(source.pid)
