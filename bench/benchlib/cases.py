# SPDX-License-Identifier: Apache-2.0
"""The cases and what is asked of them: data, no code that runs anything."""
import dataclasses

QEMU = 'QEMU'
QEMU_5 = 'QEMU, limit 5 ms'
BARE = 'bare copy'
WARM = 'bare copy, warm'
BESIDE = 'bare copy beside it'            # while the guest runs, which takes a processor
BESIDE_WARM = 'the same, warm'


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    title: str
    memory: str
    work: str           # the built-in guest's mode and options
    bare: int           # bytes of the bare copy where no move gave a figure
    cpus: int = 1
    peers: tuple = (QEMU,)

    def guest(self):
        return f'{self.work},cpus={self.cpus},interval=1000'


MIB = 1 << 20

CASES = (
    Case('idle', 'idle guest: 1 GiB, 800 MiB filled', '1G', 'idle,fill=800M,hot=0', 800 * MIB),
    Case('hot', 'hot guest: 1 GiB, 512 MiB filled, 64 MiB rewritten in a loop', '1G',
         'stress,hot=64M,fill=512M', 576 * MIB, peers=(QEMU, QEMU_5)),
    Case('untouched', 'mostly untouched: 4 GiB, 100 MiB filled', '4G', 'idle,fill=100M,hot=0',
         100 * MIB),
)


@dataclasses.dataclass(frozen=True)
class Metric:
    name: str
    title: str
    unit: str
    key: str            # in a run's dictionary
    scale: float = 1
    digits: int = 2
    worst: bool = False  # the highest of all runs counts, not the median


PAUSE = Metric('guest-pause', 'pause seen by the guest', 'ms', 'pause_ms')
TOTAL = Metric('total-time', 'total time', 'ms', 'total_ms', digits=0)
RATE = Metric('rate', 'rate', 'MB/s', 'rate', 1e-6, 0)
BYTES = Metric('bytes', 'bytes on the wire', 'MiB', 'bytes', 1 / MIB, 1)
RECOVERY = Metric('recovery', 'back at 90 % of its speed after', 'ms', 'recovery_ms', digits=1)
SPEED20 = Metric('speed-20ms', 'speed in the first 20 ms', '%', 'speed20', 100, 0)
SPEED200 = Metric('speed-200ms', 'speed in the first 200 ms', '%', 'speed200', 100, 0)
SPEED_BEFORE = Metric('speed-before', 'speed before the move', 'units/ms', 'speed_before', digits=0)
ANSWER = Metric('answer-median', 'query-migrate, median answer', 'ms', 'answer_median_ms')
WORST = Metric('answer-max', 'query-migrate, longest answer', 'ms', 'answer_max_ms', worst=True)
DOWNTIME = Metric('downtime', 'pause as the monitor reports it', 'ms', 'vmm_downtime_ms')
OWN_TOTAL = Metric('own-total-time', 'total time as the monitor reports it', 'ms', 'vmm_total_ms',
                   digits=0)
FLOOR = Metric('floor', 'longest gap beside a bare copy, no move', 'ms', 'floor_ms')
WRONG = Metric('wrong-words', 'wrong words in the guest\'s check', '', 'wrong', digits=0, worst=True)


@dataclasses.dataclass(frozen=True)
class Ask:
    """A row of the table. The limit is `most` (or `least`), times the peer's value if there is a
    peer and it is not `absolute`; none of the two: a figure only."""
    metric: Metric
    peer: str = None
    most: float = None
    least: float = None
    strict: bool = True     # below, not at most
    absolute: bool = False


RATES = (Ask(RATE, BESIDE_WARM), Ask(RATE, BARE), Ask(RATE, WARM))


def asks(case):
    """The rows of a case, in order."""
    rows = {
        'idle': [Ask(PAUSE, most=1), Ask(PAUSE, QEMU, most=1 / 3, strict=False),
                 Ask(TOTAL, QEMU, most=1 / 2, strict=False),
                 Ask(RATE, BESIDE, least=0.8), *RATES],
        'hot': [Ask(PAUSE, most=2.5), Ask(PAUSE, QEMU, most=1 / 10, strict=False),
                Ask(PAUSE, QEMU_5, most=1), Ask(TOTAL, QEMU, most=1 / 2, strict=False),
                Ask(TOTAL, QEMU_5), Ask(RATE, BESIDE), *RATES],
        'untouched': [Ask(PAUSE, most=1), Ask(PAUSE, QEMU, most=1 / 3, strict=False),
                      Ask(TOTAL, QEMU, most=1 / 5, strict=False), Ask(RATE, BESIDE), *RATES],
    }[case.name]
    return rows + [
        Ask(RECOVERY, QEMU, most=20, strict=False, absolute=True), Ask(SPEED20, QEMU),
        Ask(SPEED200, QEMU), Ask(ANSWER, QEMU, most=2, strict=False, absolute=True),
        Ask(WORST, QEMU, most=20, strict=False, absolute=True), Ask(BYTES, QEMU),
        Ask(DOWNTIME, QEMU), Ask(OWN_TOTAL, QEMU), Ask(FLOOR),
        Ask(WRONG, most=0, strict=False)]
