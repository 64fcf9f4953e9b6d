/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vCPU 0's view of the outside: lines once per interval, commands, the power button. docs/guest.md
 * documents every line; names are only ever added.
 */
#include "guest.h"

#define POLL_US      10000
#define BUTTON_EVERY 10     /* polls */
#define CLOSE_US     100000 /* how long the other vCPUs may take to close an interval */
#define BUTTON_PORT  0x603
#define BUTTON       0x01
#define READ_AT_ONCE 16
#define RING_LINE    64
#define GAPS_PRINTED 64 /* of each vCPU, when no number is given */

static uint64_t next_poll, next_report, interval_began, closing_since;
static bool closing;
static unsigned int polls;
static uint32_t move_printed;
static uint64_t check_printed, check_wrong;
static uint64_t argument; /* digits in front of a command */
static uint16_t ring_copy[MAX_CPUS][WORK_RING];

static bool passed(uint64_t now, uint64_t at, uint64_t limit)
{
	return (int64_t)(now - at) >= 0 || at - now > limit;
}

void report_start(void)
{
	interval_began = tsc_read();
	next_poll = interval_began;
	next_report = interval_began + us_to_tsc(guest.config.interval_ms * 1000);
	move_printed = measure_last_move().generation;
}

void report_interval(struct vcpu *vcpu)
{
	uint64_t interval = load(&guest.interval);
	static uint64_t work_before[MAX_CPUS];

	if (vcpu->interval == interval)
		return;
	memcpy(vcpu->interval_top, vcpu->top, sizeof(vcpu->top));
	memset(vcpu->top, 0, sizeof(vcpu->top));
	vcpu->interval_work = vcpu->work - work_before[vcpu->id];
	work_before[vcpu->id] = vcpu->work;
	store(&vcpu->interval, interval);
}

static uint64_t wrong_words(void)
{
	uint64_t wrong = 0;

	for (unsigned int i = 0; i < guest.cpus; i++)
		wrong += load(&guest.vcpus[i].wrong);
	return wrong;
}

static void interval_print(uint64_t now)
{
	uint64_t longest = 0, work = 0, checked = 0, sweeps = UINT64_MAX;
	struct move move = measure_last_move();

	for (unsigned int i = 0; i < guest.cpus; i++) {
		struct vcpu *vcpu = &guest.vcpus[i];

		if (load(&vcpu->interval) == guest.interval) {
			if (vcpu->interval_top[0].length > longest)
				longest = vcpu->interval_top[0].length;
			work += vcpu->interval_work;
		}
		checked += load(&vcpu->checked_pages);
		if (load(&vcpu->sweep) - 1 < sweeps)
			sweeps = vcpu->sweep - 1;
	}
	line_begin("");
	line_number("interval", guest.interval);
	line_number("sweeps", sweeps);
	line_number("longest-us", tsc_to_us(longest));
	line_number("move-us", tsc_to_us(move.length));
	line_number("moves", move.generation);
	line_number("wrong", wrong_words());
	line_number("checked-mb", checked >> 8);
	line_number("work", work);
	line_number("ms", tsc_to_us(closing_since - interval_began) / 1000);
	line_end();
	interval_began = closing_since;
	next_report = now + us_to_tsc(guest.config.interval_ms * 1000);
}

static void interval_poll(uint64_t now)
{
	uint64_t limit = us_to_tsc(guest.config.interval_ms * 1000);

	if (!closing && passed(now, next_report, limit)) {
		closing = true;
		closing_since = now;
		store(&guest.interval, guest.interval + 1);
		return;
	}
	if (!closing)
		return;
	for (unsigned int i = 0; i < guest.cpus; i++) {
		if (!load(&guest.vcpus[i].dead) &&
		    load(&guest.vcpus[i].interval) != guest.interval &&
		    now - closing_since < us_to_tsc(CLOSE_US))
			return;
	}
	closing = false;
	interval_print(now);
	next_report = closing_since + limit;
}

static void move_poll(void)
{
	struct move move = measure_last_move();

	if (move.generation == move_printed)
		return;
	move_printed = move.generation;
	line_begin("move");
	line_number("moves", move.generation);
	line_number("pause-us", tsc_to_us(move.length));
	line_number("cpu", move.cpu);
	line_hex("start", move.start);
	line_hex("length", move.length);
	line_end();
}

static void wrong_poll(void)
{
	struct wrong_word word;

	while (work_next_wrong(&word)) {
		line_begin("wrong");
		line_hex("address", word.address);
		line_hex("expected", word.expected);
		line_hex("found", word.found);
		line_end();
	}
}

static void check_start(void)
{
	if (check_printed == guest.check_request) {
		check_wrong = wrong_words();
		store(&guest.check_request, guest.check_request + 1);
	}
}

static void check_poll(void)
{
	uint64_t wrong, words = 0;
	unsigned int cpus = 0;

	if (check_printed == guest.check_request)
		return;
	for (unsigned int i = 0; i < guest.cpus; i++) {
		struct vcpu *vcpu = &guest.vcpus[i];

		if (load(&vcpu->check_done) == guest.check_request) {
			words += (vcpu->hot.pages + vcpu->cold.pages) * PAGE_WORDS;
			cpus++;
		} else if (!load(&vcpu->dead)) {
			return;
		}
	}
	check_printed = guest.check_request;
	wrong = wrong_words();
	line_begin("check");
	line_number("wrong", wrong);
	line_number("words", words);
	line_number("new", wrong - check_wrong);
	line_number("cpus", cpus);
	line_end();
}

static void gap_print(const char *kind, unsigned int cpu, const struct gap *gap)
{
	static const char *const kinds[] = {"run", "io", "move"};

	line_begin(kind);
	line_number("cpu", cpu);
	line_string("kind", kinds[gap->kind % 3]);
	line_hex("start", gap->start);
	line_hex("length", gap->length);
	line_number("us", tsc_to_us(gap->length));
	line_end();
}

static void count_print(const char *kind, uint64_t count)
{
	line_begin(kind);
	line_number("count", count);
	line_end();
}

/* All lists are copied before the first line is sent: sending takes long, and they go on. */
static void gaps_print(uint64_t wanted)
{
	static struct gap copy[MAX_CPUS][GAP_LIST];
	static uint64_t listed[MAX_CPUS];
	uint64_t count = 0;

	if (!wanted)
		wanted = GAPS_PRINTED;
	if (wanted > GAP_LIST)
		wanted = GAP_LIST;
	for (unsigned int i = 0; i < guest.cpus; i++) {
		do {
			listed[i] = load(&guest.vcpus[i].listed);
			memcpy(copy[i], guest.vcpus[i].list, sizeof(copy[i]));
		} while (load(&guest.vcpus[i].listed) != listed[i]);
	}
	for (unsigned int i = 0; i < guest.cpus; i++) {
		uint64_t at = listed[i] > wanted ? listed[i] - wanted : 0;

		for (; at < listed[i]; at++, count++)
			gap_print("gap", i, &copy[i][at % GAP_LIST]);
	}
	count_print("gaps", count);
}

static void tops_print(void)
{
	uint64_t count = 0;

	for (unsigned int i = 0; i < guest.cpus; i++) {
		for (unsigned int j = 0; j < TOP_GAPS; j++) {
			if (!guest.vcpus[i].interval_top[j].length)
				break;
			gap_print("top", i, &guest.vcpus[i].interval_top[j]);
			count++;
		}
	}
	count_print("tops", count);
}

static void ring_print(uint64_t wanted)
{
	uint64_t newest = guest.vcpus[0].bucket;

	if (!wanted || wanted > WORK_RING)
		wanted = WORK_RING;
	for (unsigned int i = 0; i < guest.cpus; i++) {
		struct vcpu *vcpu = &guest.vcpus[i];
		uint64_t have;

		memcpy(ring_copy[i], vcpu->work_ring, sizeof(ring_copy[i]));
		/* What a vCPU has not come to yet is not what stands in its ring. */
		have = load(&vcpu->bucket);
		for (uint64_t b = newest; b > have && newest - b < WORK_RING; b--)
			ring_copy[i][b % WORK_RING] = 0;
	}
	line_begin("ring");
	line_hex("newest", newest * guest.tsc_khz);
	line_hex("tick", guest.tsc_khz);
	line_number("buckets", wanted);
	line_number("cpus", guest.cpus);
	line_end();
	for (unsigned int i = 0; i < guest.cpus; i++) {
		for (uint64_t at = 0; at < wanted; at++) {
			if (at % RING_LINE == 0) {
				line_begin("work");
				line_number("cpu", i);
				line_number("at", at);
				line_text(" ");
			}
			line_hex4(ring_copy[i][(newest - wanted + 1 + at) % WORK_RING]);
			if (at % RING_LINE == RING_LINE - 1 || at == wanted - 1)
				line_end();
		}
	}
	count_print("ring-end", wanted);
}

static void command(int c)
{
	uint64_t number = argument;

	if (c >= '0' && c <= '9') {
		argument = (argument * 10 + (uint64_t)(c - '0')) % 1000000;
		return;
	}
	argument = 0;
	switch (c) {
	case 'g':
		gaps_print(number);
		return;
	case 't':
		tops_print();
		return;
	case 'h':
		ring_print(number);
		return;
	case 'c':
		check_start();
		return;
	case 'q':
		line_begin("power-off");
		line_end();
		cpu_power_off();
	case 'r':
		line_begin("reset");
		line_end();
		cpu_reset();
	case ' ':
	case '\n':
	case '\r':
		return;
	}
	line_begin("unknown-command");
	line_hex("byte", (uint8_t)c);
	line_end();
}

static void button_poll(struct vcpu *vcpu)
{
	uint8_t status = in8(BUTTON_PORT);

	measure_io(vcpu);
	if (status == 0xff || !(status & BUTTON))
		return;
	line_begin("power-button");
	line_end();
	cpu_power_off();
}

void report_poll(struct vcpu *vcpu, uint64_t now)
{
	int c;

	if (!passed(now, next_poll, us_to_tsc(POLL_US)))
		return;
	next_poll = now + us_to_tsc(POLL_US);
	/* The time just after a move is left to the guest's own work. */
	if (!passed(now, load(&guest.quiet_until), us_to_tsc(1000000)))
		return;
	interval_poll(now);
	move_poll();
	wrong_poll();
	check_poll();
	for (unsigned int i = 0; i < READ_AT_ONCE && (c = serial_read()) >= 0; i++)
		command(c);
	if (++polls % BUTTON_EVERY == 0)
		button_poll(vcpu);
}
