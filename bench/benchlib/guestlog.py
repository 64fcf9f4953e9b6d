# SPDX-License-Identifier: Apache-2.0
"""The built-in guest's lines (docs/guest.md), from text to values. Nothing here does I/O."""
import dataclasses

PREFIX = 'godwit-guest'
WORK_IO = 0x8000    # the vCPU talked to a device in this millisecond
WORK_UNITS = 0x7fff


@dataclasses.dataclass(frozen=True)
class Gap:
    """A time in which a vCPU was kept from running; TSC ticks."""
    cpu: int
    kind: str
    start: int
    length: int

    @property
    def end(self):
        return self.start + self.length


@dataclasses.dataclass(frozen=True)
class Ring:
    """Units of work a bucket (1 ms), over all vCPUs; `first` is the TSC at the oldest one's start."""
    first: int
    tick: int
    work: tuple


def split_line(line):
    """(kind, {name: value}, rest words) of a line; None for what is none of the guest's.

    An interval line has no kind of its own: it is called 'interval' here."""
    words = line.split()
    if not words or words[0] != PREFIX:
        return None
    kind, words = ('interval', words[1:]) if len(words) > 1 and '=' in words[1] else \
        (words[1] if len(words) > 1 else '', words[2:])
    values = dict(word.split('=', 1) for word in words if '=' in word)
    return kind, values, [word for word in words if '=' not in word]


def number(text):
    return int(text, 0)


def parse_gaps(lines):
    """The gaps of the answers to 'g' and 't', each once, in the order of their start."""
    found = {}
    for line in lines:
        parsed = split_line(line)
        if not parsed or parsed[0] not in ('gap', 'top'):
            continue
        values = parsed[1]
        gap = Gap(number(values['cpu']), values['kind'], number(values['start']),
                  number(values['length']))
        found[(gap.cpu, gap.start)] = gap
    return sorted(found.values(), key=lambda gap: (gap.start, gap.cpu))


def parse_ring(lines):
    """The answer to 'h'. ValueError when it is not whole."""
    head, buckets, seen, ended = None, [], {}, False
    for line in lines:
        parsed = split_line(line)
        if not parsed:
            continue
        kind, values, rest = parsed
        if kind == 'ring':
            head = {name: number(value) for name, value in values.items()}
            buckets, seen, ended = [0] * head['buckets'], {}, False
        elif kind == 'work' and head:
            digits = rest[0] if rest else ''
            if len(digits) % 4:
                raise ValueError(f'a line of the work ring has {len(digits)} digits')
            at, cpu = number(values['at']), number(values['cpu'])
            for i in range(len(digits) // 4):
                if at + i >= len(buckets):
                    raise ValueError('the work ring has more buckets than it said')
                buckets[at + i] += int(digits[4 * i:4 * i + 4], 16) & WORK_UNITS
            seen[cpu] = seen.get(cpu, 0) + len(digits) // 4
        elif kind == 'ring-end':
            ended = True
    if not head:
        raise ValueError('there is no work ring in the lines')
    if not ended or len(seen) != head['cpus'] or any(n != len(buckets) for n in seen.values()):
        raise ValueError(f'the work ring is not whole: {seen} of {head}')
    first = (head['newest'] // head['tick'] - len(buckets) + 1) * head['tick']
    return Ring(first, head['tick'], tuple(buckets))
