/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a vCPU sees of being kept from running: every few microseconds of work it looks at the TSC,
 * and a step that is too long is a gap. The work done in each millisecond is kept beside it.
 *
 * A gap may be the pause of a move. Port 0x620 gives the number of moves so far; it is read after
 * a gap, at most 500 times a second over time, so that the noise of a busy host costs little. When
 * it has changed, the longest gap since it was last read was the pause.
 */
#include "guest.h"

#define MOVE_PORT     0x620
#define NO_DEVICE     0xffffffffu
#define GAP_US        40   /* shorter ones are not looked at */
#define LIST_US       100  /* shorter ones are not listed */
#define LIST_IO_US    1000 /* as many are usual on a busy host, and would fill the list */
#define IO_US         150  /* a device access this long may hide a move */
#define READ_EVERY_US 2000
#define READ_BURST    8
#define QUIET_US      250000

static uint64_t gap_ticks, list_ticks, list_io_ticks, io_ticks, read_ticks, bucket_ticks;
static bool move_locked; /* guards last_move, and the device */
static struct move last_move;

uint64_t tsc_to_us(uint64_t ticks)
{
	return ticks / guest.tsc_khz * 1000 + ticks % guest.tsc_khz * 1000 / guest.tsc_khz;
}

uint64_t us_to_tsc(uint64_t us)
{
	return us * guest.tsc_khz / 1000;
}

static void ring_move(struct vcpu *vcpu, uint64_t now)
{
	uint64_t bucket = now / bucket_ticks;
	uint64_t clear = bucket - vcpu->bucket;

	if (clear > WORK_RING) /* long ahead, or the TSC stepped back */
		clear = WORK_RING;
	for (uint64_t i = 0; i < clear; i++)
		vcpu->work_ring[(bucket - i) % WORK_RING] = 0;
	vcpu->bucket = bucket;
	vcpu->bucket_end = (bucket + 1) * bucket_ticks;
}

void measure_start(struct vcpu *vcpu)
{
	gap_ticks = us_to_tsc(GAP_US);
	list_ticks = us_to_tsc(LIST_US);
	list_io_ticks = us_to_tsc(LIST_IO_US);
	io_ticks = us_to_tsc(IO_US);
	read_ticks = us_to_tsc(READ_EVERY_US);
	bucket_ticks = guest.tsc_khz;
	vcpu->generation = in32(MOVE_PORT);
	if (vcpu->id == 0)
		guest.move_device = vcpu->generation != NO_DEVICE;
	if (vcpu->id == 0 && guest.move_device)
		last_move.generation = vcpu->generation;
	vcpu->last = tsc_read();
	ring_move(vcpu, vcpu->last);
}

static void top_insert(struct gap *top, const struct gap *gap)
{
	unsigned int at = TOP_GAPS;

	while (at > 0 && top[at - 1].length < gap->length) {
		if (at < TOP_GAPS)
			top[at] = top[at - 1];
		at--;
	}
	if (at < TOP_GAPS)
		top[at] = *gap;
}

static void top_remove(struct gap *top, uint64_t start)
{
	for (unsigned int i = 0; i < TOP_GAPS; i++) {
		if (top[i].start != start)
			continue;
		for (; i < TOP_GAPS - 1; i++)
			top[i] = top[i + 1];
		top[i] = (struct gap){0};
	}
}

static void gap_found(struct vcpu *vcpu, uint64_t start, uint64_t length, enum gap_kind kind)
{
	struct gap gap = {start, length, kind};

	if (length > vcpu->candidate.length)
		vcpu->candidate = gap;
	if (kind == GAP_RUN)
		top_insert(vcpu->top, &gap);
	if (kind == GAP_RUN || length > io_ticks)
		vcpu->candidate_pending = guest.move_device;
	if (length > (kind == GAP_IO ? list_io_ticks : list_ticks)) {
		vcpu->list[vcpu->listed % GAP_LIST] = gap;
		store(&vcpu->listed, vcpu->listed + 1);
	}
}

/* The candidate was the pause of this move. The lock is held. */
static void move_found(struct vcpu *vcpu, uint32_t generation)
{
	struct gap *gap = &vcpu->candidate;

	bool listed = false;

	top_remove(vcpu->top, gap->start);
	for (unsigned int i = 0; i < GAP_LIST; i++) {
		if (vcpu->list[i].start != gap->start)
			continue;
		vcpu->list[i].kind = GAP_MOVE;
		listed = true;
	}
	/* A pause is listed however short it was, and whatever the vCPU was about. */
	if (!listed) {
		vcpu->list[vcpu->listed % GAP_LIST] = (struct gap){gap->start, gap->length, GAP_MOVE};
		store(&vcpu->listed, vcpu->listed + 1);
	}
	vcpu->generation = generation;
	if (last_move.generation != generation) {
		last_move = (struct move){.generation = generation};
		store(&guest.quiet_until, vcpu->last + us_to_tsc(QUIET_US));
	}
	if (gap->length <= last_move.length)
		return;
	last_move.cpu = vcpu->id;
	last_move.start = gap->start;
	last_move.length = gap->length;
	out32(MOVE_PORT, (uint32_t)tsc_to_us(gap->length));
}

static bool move_lock(void)
{
	return !__atomic_exchange_n(&move_locked, true, __ATOMIC_ACQUIRE);
}

static void move_unlock(void)
{
	store(&move_locked, false);
}

static void generation_read(struct vcpu *vcpu, uint64_t now)
{
	uint32_t generation;

	if ((int64_t)(vcpu->read_time - now) > (int64_t)(READ_BURST * read_ticks))
		return;
	if (!move_lock()) /* another vCPU is at it; a piece of work later then */
		return;
	if ((int64_t)(vcpu->read_time - now) < 0)
		vcpu->read_time = now;
	vcpu->read_time += read_ticks;
	vcpu->candidate_pending = false;
	generation = in32(MOVE_PORT);
	/* The move may have happened within this very access. */
	if (tsc_read() - vcpu->last > vcpu->candidate.length)
		vcpu->candidate = (struct gap){vcpu->last, tsc_read() - vcpu->last, GAP_IO};
	if (generation != vcpu->generation && generation != NO_DEVICE)
		move_found(vcpu, generation);
	vcpu->candidate = (struct gap){0};
	move_unlock();
	measure_io(vcpu);
}

static void backward(struct vcpu *vcpu, uint64_t now)
{
	vcpu->last = now;
	vcpu->read_time = now;
	vcpu->bucket = 0;
	ring_move(vcpu, now);
}

uint64_t measure_tick(struct vcpu *vcpu, unsigned int work)
{
	uint64_t now = tsc_read(), start = vcpu->last, gap = now - start;
	uint16_t *bucket;

	if (gap > gap_ticks) {
		if ((int64_t)gap < 0)
			backward(vcpu, now);
		else
			gap_found(vcpu, start, gap, GAP_RUN);
	}
	vcpu->last = now;
	if (now >= vcpu->bucket_end)
		ring_move(vcpu, now);
	bucket = &vcpu->work_ring[vcpu->bucket % WORK_RING];
	if ((*bucket & WORK_MAX) + work <= WORK_MAX)
		*bucket += work;
	vcpu->work += work;
	if (vcpu->candidate_pending)
		generation_read(vcpu, now);
	return now;
}

void measure_io(struct vcpu *vcpu)
{
	uint64_t now = tsc_read(), start = vcpu->last, gap = now - start;

	if (!vcpu->bucket_end)
		return; /* not started */
	if ((int64_t)gap < 0)
		backward(vcpu, now);
	else if (gap > gap_ticks)
		gap_found(vcpu, start, gap, GAP_IO);
	vcpu->last = now;
	if (now >= vcpu->bucket_end)
		ring_move(vcpu, now);
	vcpu->work_ring[vcpu->bucket % WORK_RING] |= WORK_IO;
}

/* vCPU 0 must not wait here: the holder may be the one that is kept from running. */
struct move measure_last_move(void)
{
	static struct move copy;

	if (move_lock()) {
		copy = last_move;
		move_unlock();
	}
	return copy;
}
