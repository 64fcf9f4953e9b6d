# SPDX-License-Identifier: Apache-2.0
"""godwit guest: what it writes, and how it fails."""
import os
import struct
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GODWIT = os.environ.get('GODWIT', os.path.join(ROOT, 'build', 'godwit'))


def godwit(*arguments, **options):
    return subprocess.run([GODWIT, *arguments], capture_output=True, timeout=10, check=False, **options)


def test_writes_a_pvh_elf(tmp_path):
    path = tmp_path / 'guest.elf'
    path.write_bytes(b'x' * 1000000)  # what was there is replaced
    assert godwit('guest', '--write', str(path)).returncode == 0
    image = path.read_bytes()
    assert image[:4] == b'\x7fELF' and len(image) < 200000
    assert godwit('guest', '--write', '-').stdout == image
    machine, = struct.unpack_from('<H', image, 18)
    entry, headers = struct.unpack_from('<QQ', image, 24)
    size, count = struct.unpack_from('<HH', image, 54)
    assert machine == 62
    loads, notes = [], []
    for i in range(count):
        kind, _, offset, _, address, length, memory, _ = struct.unpack_from('<IIQQQQQQ', image, headers + i * size)
        if kind == 1:
            loads.append((address, memory))
        elif kind == 4:
            notes.append(struct.unpack_from('<III4sQ', image, offset))
            assert length == 24
    assert notes == [(4, 8, 18, b'Xen\0', entry)]
    assert loads[0][0] == 0x200000 and sum(loads[-1]) <= 0x600000
    # Nothing of the machine it was built on.
    assert ROOT.encode() not in image and b'/tmp' not in image


def test_failures():
    missing = godwit('guest', '--write', '/nonexistent/guest.elf')
    assert missing.returncode == 1
    assert b'cannot write the guest to /nonexistent/guest.elf: No such file' in missing.stderr
    full = godwit('guest', '--write', '/dev/full')
    assert full.returncode == 1 and b'No space left on device' in full.stderr
    for arguments in ([], ['--write'], ['--write', '/dev/null', 'more'], ['--colour']):
        wrong = godwit('guest', *arguments)
        assert wrong.returncode == 2 and wrong.stderr and not wrong.stdout


def test_help_names_every_option():
    text = godwit('guest', '--help')
    assert text.returncode == 0
    for word in ('stress', 'idle', 'hot=', 'fill=', 'pace=', 'check=', 'interval=', 'cpus=', 'seed=', 'top=',
                 'damage=', 'interval= sweeps= longest-us= move-us= moves= wrong= checked-mb= work= ms='):
        assert word in text.stdout.decode()
