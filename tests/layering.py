#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a lower folder of src/ includes a higher one.

Usage: tests/layering.py [--self-test]
"""
import os
import re
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Low to high. A folder may include itself and what is to its left.
LAYERS = ['base', 'kvm', 'memory', 'arch', 'device', 'virtio', 'migration', 'machine', 'control', 'cmd']

# Narrower than the order alone. The migration engine is a library: it knows a machine only through
# its table of operations.
ONLY = {'migration': {'base', 'memory', 'migration'}}

# The built-in guest is a program of its own; all that the monitor sees of it is its finished image.
GUEST_IMAGE = {'guest/guest_elf.h': {'machine', 'cmd'}}

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
COMMENT = re.compile(r'/\*.*?\*/', re.DOTALL)


def includes(path):
    """The quoted includes of a file, with line numbers; block comments count for nothing."""
    with open(path, encoding='utf-8') as file:
        text = COMMENT.sub(lambda match: '\n' * match.group().count('\n'), file.read())
    for match in INCLUDE.finditer(text):
        yield text.count('\n', 0, match.start(1)) + 1, match.group(1)


def source_files(folder):
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            if name.endswith(('.c', '.h', '.S')):
                yield os.path.join(parent, name)


def allowed(layer):
    return ONLY.get(layer) or set(LAYERS[:LAYERS.index(layer) + 1])


def check(root):
    """Returns (complaints, number of files read)."""
    complaints, count = [], 0
    source = os.path.join(root, 'src')
    for path in source_files(source):
        count += 1
        name = os.path.relpath(path, root)
        parts = os.path.relpath(path, source).split(os.sep)
        layer = parts[0] if len(parts) > 1 else None  # None: src/godwit.c, above all layers
        if layer is not None and layer not in LAYERS:
            complaints.append(f'{name}: the folder src/{layer} has no place in the order of layers; '
                              'give it one in tests/layering.py and ARCHITECTURE.md')
            continue
        for line, target in includes(path):
            head = target.split('/')[0]
            if layer in GUEST_IMAGE.get(target, ()):
                continue
            if '/' not in target or '..' in target.split('/'):
                complaints.append(f'{name}:{line}: "{target}" must be written "layer/file.h"')
            elif head not in LAYERS:
                complaints.append(f'{name}:{line}: "{target}" is in no layer')
            elif layer is not None and head not in allowed(layer):
                complaints.append(f'{name}:{line}: {layer} must not include {head} ("{target}"); it may '
                                  f'include {", ".join(l for l in LAYERS if l in allowed(layer))}')
    for path in source_files(os.path.join(root, 'guest')):
        count += 1
        for line, target in includes(path):
            if target.split('/')[0] in LAYERS or '..' in target.split('/'):
                complaints.append(f'{os.path.relpath(path, root)}:{line}: the guest is a program of its '
                                  f'own and includes nothing of src ("{target}")')
    return complaints, count


SELF_TEST = [
    # file, text, what the complaint must say (None: no complaint)
    ('src/base/a.c', '#include "base/error.h"\n', None),
    ('src/base/a.c', '#include "kvm/slots.h"\n', 'src/base/a.c:1: base must not include kvm'),
    ('src/memory/a.h', '\n\n  #  include "machine/machine.h"\n', 'src/memory/a.h:3: memory must not'),
    ('src/migration/a.c', '#include "memory/ram.h"\n', None),
    ('src/migration/a.c', '#include "kvm/slots.h"\n', 'migration must not include kvm'),
    ('src/migration/a.c', '#include "device/serial.h"\n', 'migration must not include device'),
    ('src/arch/x86/a.c', '#include "arch/x86/boot.h"\n', None),
    ('src/arch/x86/a.c', '#include "device/bus.h"\n', 'arch must not include device'),
    ('src/cmd/a.c', '#include "base/log.h"\n#include "control/server.h"\n', None),
    ('src/godwit.c', '#include "cmd/cmd.h"\n', None),
    ('src/cmd/a.c', '#include "guest/guest_elf.h"\n', None),
    ('src/cmd/a.c', '#include "guest/layout.h"\n', 'is in no layer'),
    ('src/kvm/a.c', '#include "guest/guest_elf.h"\n', 'is in no layer'),
    ('src/base/a.c', '/* #include "kvm/slots.h" */\n', None),
    ('src/kvm/a.c', '#include "slots.h"\n', 'must be written "layer/file.h"'),
    ('src/kvm/a.c', '#include "../machine/machine.h"\n', 'must be written "layer/file.h"'),
    ('src/kvm/a.c', '#include "other/a.h"\n', 'is in no layer'),
    ('src/other/a.c', '', 'has no place in the order'),
    ('guest/a.c', '#include "runtime.h"\n', None),
    ('guest/a.c', '#include "base/bitmap.h"\n', 'includes nothing of src'),
    ('guest/a.c', '#include "../src/base/bitmap.h"\n', 'includes nothing of src'),
]


def self_test():
    failed = 0
    for name, text, expected in SELF_TEST:
        with tempfile.TemporaryDirectory() as root:
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path))
            with open(path, 'w', encoding='utf-8') as file:
                file.write(text)
            complaints, _ = check(root)
        good = not complaints if expected is None else len(complaints) == 1 and expected in complaints[0]
        if not good:
            failed += 1
            print(f'self-test: {name} with {text!r}: expected {expected!r}, got {complaints}')
    return failed


def main():
    if '--self-test' in sys.argv:
        failed = self_test()
        print(f'{len(SELF_TEST) - failed} of {len(SELF_TEST)} wrong and right includes told apart')
        return 1 if failed else 0
    complaints, count = check(ROOT)
    if count == 0:
        complaints.append('no source file found')
    print('\n'.join(complaints) if complaints else f'{count} files keep the order of layers')
    return 1 if complaints else 0


if __name__ == '__main__':
    sys.exit(main())
