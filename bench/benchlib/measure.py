# SPDX-License-Identifier: Apache-2.0
"""From what the guest and the monitors say to the figures. Nothing here does I/O."""
import dataclasses
import statistics

WINDOW = 5          # buckets (ms) over which a speed is taken
RECOVERED = 0.9     # of the speed before


class ClockMap:
    """Time of day (ns) to TSC, by two pairs read on this host, or one and a rate."""

    def __init__(self, first, last=None, khz=None):
        self.tsc, self.realtime = first['tsc'], first['realtime_ns']
        if last and last['tsc'] - first['tsc'] > 0:
            self.ns_per_tick = (last['realtime_ns'] - first['realtime_ns']) / \
                (last['tsc'] - first['tsc'])
        elif khz:
            self.ns_per_tick = 1e6 / khz
        else:
            raise ValueError('a second pair of clocks, or the rate, is needed')

    def tsc_at(self, realtime_ns):
        return round(self.tsc + (realtime_ns - self.realtime) / self.ns_per_tick)


def overlap(gap, start, end):
    return min(gap.end, end) - max(gap.start, start)


def find_pause(gaps, stop, resume):
    """Of each vCPU, the gap of the move: the one that shares most time with [stop, resume] (TSC of
    the source's STOP event and of the destination's RESUME event), one that the guest itself knows
    for a move first. Empty when no gap meets that time."""
    def rank(gap):
        return gap.kind == 'move', overlap(gap, stop, resume), gap.length

    found = {}
    for gap in gaps:
        if overlap(gap, stop, resume) > 0 and \
                (gap.cpu not in found or rank(gap) > rank(found[gap.cpu])):
            found[gap.cpu] = gap
    return list(found.values())


def longest_gap(gaps, start, end):
    """Ticks of the longest gap that meets [start, end]; 0 when there is none."""
    return max((gap.length for gap in gaps if overlap(gap, start, end) > 0), default=0)


def speed_before(ring, until, buckets=500, skip=1):
    """Median work of a WINDOW, over the last `buckets` whole ones that ended before `until`."""
    last = min((until - ring.first) // ring.tick - skip, len(ring.work) - 1)
    first = max(0, last - buckets)
    windows = [sum(ring.work[i:i + WINDOW]) for i in range(first, last - WINDOW + 1)]
    if not windows:
        raise ValueError('the work ring does not reach back before the move')
    speed = statistics.median(windows) / WINDOW
    if speed <= 0:
        raise ValueError('the guest hardly ran before the move: the host is too busy to measure on')
    return speed


@dataclasses.dataclass(frozen=True)
class Recovery:
    ms: float       # first instruction to the start of the first WINDOW at RECOVERED speed
    mean20: float   # speed in the first 20 ms, 1 is the speed before
    mean200: float


def recovery(ring, resume, before):
    """The guest's own speed after its first instruction (TSC `resume`) on the destination. The
    bucket that `resume` falls into is left out, as it holds time of the pause. ms is None when the
    speed was not reached in what the ring shows."""
    at = (resume - ring.first) // ring.tick + 1
    if at < 0 or resume < ring.first:
        raise ValueError('the work ring does not reach back to the move')
    # The newest bucket is not over yet.
    work = ring.work[at:-1]
    if len(work) < 200:
        raise ValueError(f'the work ring has {len(work)} ms after the move; 200 are needed')
    lead = (ring.first + at * ring.tick - resume) / ring.tick
    reached = None
    for i in range(len(work) - WINDOW + 1):
        if sum(work[i:i + WINDOW]) >= RECOVERED * before * WINDOW:
            reached = lead + i
            break
    return Recovery(reached, sum(work[:20]) / 20 / before, sum(work[:200]) / 200 / before)


@dataclasses.dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float
    count: int


def spread(values):
    """Median, lowest, highest of the values that there are; None when there are none."""
    values = [value for value in values if value is not None]
    if not values:
        return None
    return Spread(statistics.median(values), min(values), max(values), len(values))
