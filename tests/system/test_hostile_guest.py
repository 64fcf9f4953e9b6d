# SPDX-License-Identifier: Apache-2.0
"""Guests that do their worst, as PVH kernels of a few bytes: they stop, go on and move like any other."""
import struct

import pytest

BASE = 0x200000


def pvh_elf(code):
    note = struct.pack('<III', 4, 4, 18) + b'Xen\0' + struct.pack('<I', BASE)
    header = b'\x7fELF\x02\x01\x01' + bytes(9) + struct.pack(
        '<HHIQQQIHHHHHH', 2, 62, 1, BASE, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack('<IIQQQQQQ', 1, 7, 0x1000, BASE, BASE, len(code), 0x10000, 0x1000)
    notes = struct.pack('<IIQQQQQQ', 4, 4, 0x800, 0, 0, len(note), len(note), 4)
    return (header + load + notes).ljust(0x800, b'\0') + note.ljust(0x800, b'\0') + code


def load(opcode, value):
    return bytes([opcode]) + struct.pack('<I', value)


DX, SI, DI, CX = 0xba, 0xbe, 0xbf, 0xb9
GUESTS = {
    'triple faults': b'\x0f\x01\x1d' + struct.pack('<I', BASE + 0x8000) + b'\x0f\x0b',  # lidt [zeros]; ud2
    'hlt with interrupts off': b'\xfa\xf4\xeb\xfc',
    'spins': b'\xeb\xfe',
    'reset register': load(DX, 0xcf9) + b'\xb0\x06\xee\xeb\xfd',
    'keyboard reset': b'\xb0\xfe\xe6\x64\xeb\xfc',
    'serial flood': load(DX, 0x3f8) + b'\xb0\x41\xee\xeb\xfd',
    'serial flood by string': load(DX, 0x3f8) + load(SI, BASE) + load(CX, 0x1000) + b'\xfc\xf3\x6e\xeb\xf1',
    'memory holes': load(DI, 0xd0000000) + b'\x8b\x07\x89\x07\x8a\x07\x66\x89\x47\xff\x81\xc7' +
                    struct.pack('<I', 0xfff) + b'\xeb\xee',
    'from hole to hole': load(SI, 0xd0000000) + load(DI, 0xe0000000) + load(CX, 0x100000) + b'\xf3\xa5\xeb\xed',
}


@pytest.mark.parametrize('guest', GUESTS)
def test_a_guest_at_its_worst_stops_and_moves(machine, folder, guest):
    kernel = f'{folder}/kernel'
    with open(kernel, 'wb') as file:
        file.write(pvh_elf(GUESTS[guest]))
    source = machine('--kernel', kernel, '--memory', '64M', '--serial', f'unix:{folder}/nobody')
    for _ in range(5):
        source.qmp.execute('stop', timeout=5)
        assert source.qmp.execute('query-status', timeout=1)['status'] == 'paused'
        source.qmp.execute('cont', timeout=5)
    destination = machine('--incoming', f'unix:{folder}/move', '--kernel', kernel)
    info = source.migrate(f'unix:{folder}/move', timeout=20)
    assert info['status'] == 'completed', info
    destination.qmp.wait_state('running')
    destination.qmp.execute('stop', timeout=5)
    assert destination.qmp.execute('query-status')['status'] == 'paused'
