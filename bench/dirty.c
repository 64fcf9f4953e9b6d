/* SPDX-License-Identifier: Apache-2.0 */
/* godwit bench dirty: what dirty tracking costs, on the real KVM and on bitmaps of large guests. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "dirty_machine.h"
#include "linear.h"

#define GIB            (UINT64_C(1) << 30)
#define RUNS           15u
#define SYNTHETIC_RUNS 11u
#define KERNEL_MOST    32764u

static bool json, check;
static unsigned int rows, missed;

static const char *const kinds[] = {"auto", "bitmap", "manual", "ring"};

/* peer NULL: none; limit 0: none. at_least: the limit is for the ratio of the peer to the value. */
static void row(const char *name, const char *metric, const char *unit, double value,
		const char *peer, double peer_value, double limit)
{
	bool bad = limit > 0 && value > limit;

	missed += bad;
	if (json) {
		printf("%s\n{\"bench\": \"dirty\", \"case\": \"%s\", \"metric\": \"%s\", \"unit\": "
		       "\"%s\", \"value\": %.4g",
		       rows ? "," : "[", name, metric, unit, value);
		if (peer)
			printf(", \"peer\": \"%s\", \"peer_value\": %.4g, \"ratio\": %.4g", peer,
			       peer_value, value / peer_value);
		else
			printf(", \"peer\": null, \"peer_value\": null, \"ratio\": null");
		if (limit > 0)
			printf(", \"limit_value\": %.4g}", limit);
		else
			printf(", \"limit_value\": null}");
	} else {
		if (rows == 0)
			printf("%-34s %-22s %10s %-4s %10s %8s %8s\n", "", "", "Godwit", "",
			       "linear", "ratio", "limit");
		printf("%-34s %-22s %10.4g %-4s", name, metric, value, unit);
		if (peer)
			printf(" %10.4g %8.4f", peer_value, value / peer_value);
		else
			printf(" %10s %8s", "", "");
		if (limit > 0)
			printf(" %8.4g %s", limit, bad ? "MISSED" : "ok");
		printf("\n");
	}
	fflush(stdout);
	rows++;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static double median_us(uint64_t *times, unsigned int count)
{
	qsort(times, count, sizeof(*times), compare);
	return (double)times[count / 2] / 1000.0;
}

static double idle_sync(struct bench_machine *machine)
{
	uint64_t times[RUNS];

	for (unsigned int i = 0; i < RUNS; i++) {
		times[i] = bench_machine_sync(machine, false);
		bench_machine_clear(machine);
	}
	return median_us(times, RUNS);
}

static double idle_linear(struct bench_machine *machine)
{
	struct linear *linear = linear_create(machine->slots, KERNEL_MOST, machine->ram.size >> 12);
	uint64_t times[RUNS];

	for (unsigned int i = 0; i < RUNS; i++) {
		uint64_t start = clock_ns();

		if (linear_sync(linear, machine->vm.fd) < 0)
			bench_fail("KVM_GET_DIRTY_LOG", NULL);
		times[i] = clock_ns() - start;
	}
	linear_destroy(linear);
	return median_us(times, RUNS);
}

static uint64_t next_random(uint64_t *seed)
{
	*seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return *seed >> 20;
}

static void look_ups(struct bench_machine *machine, const char *name)
{
	enum { COUNT = 200000, LINEAR = 200 };
	struct linear *linear = linear_create(machine->slots, KERNEL_MOST, machine->ram.size >> 12);
	uint64_t seed = 1, start, gpa_ns, hva_ns;
	uintptr_t sum = 0;
	double linear_ns;

	start = clock_ns();
	for (int i = 0; i < COUNT; i++)
		sum += (uintptr_t)kvm_slots_find(machine->slots,
						 next_random(&seed) % machine->ram.size);
	gpa_ns = clock_ns() - start;
	start = clock_ns();
	for (int i = 0; i < COUNT; i++)
		sum += (uintptr_t)kvm_slots_find_hva(
			machine->slots,
			machine->region->hva + next_random(&seed) % machine->ram.size);
	hva_ns = clock_ns() - start;
	start = clock_ns();
	for (int i = 0; i < LINEAR; i++)
		sum += (uintptr_t)linear_find(linear, next_random(&seed) % machine->ram.size);
	linear_ns = (double)(clock_ns() - start) / LINEAR;
	row(name, sum ? "look-up by GPA" : "", "ns", (double)gpa_ns / COUNT, "linear", linear_ns,
	    200);
	row(name, "look-up by host address", "ns", (double)hva_ns / COUNT, "linear", linear_ns,
	    200);
	linear_destroy(linear);
}

static void by_slots(enum kvm_dirty_kind kind)
{
	static const unsigned int counts[] = {1, 10, 100, 1000, 8000};

	for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
		const struct bench_setup setup = {.kind = kind, .memory = GIB, .slots = counts[i]};
		struct bench_machine machine;
		char name[64];
		double sync, linear;

		snprintf(name, sizeof(name), "%s, 1 GiB in %u slots", kinds[kind], counts[i]);
		bench_machine_open(&machine, &setup);
		sync = idle_sync(&machine);
		/* The dirty ring has no log that the yardstick could read. */
		if (kind == KVM_DIRTY_RING) {
			row(name, "idle sync", "us", sync, NULL, 0, 0);
		} else {
			linear = idle_linear(&machine);
			row(name, "idle sync", "us", sync, "linear", linear,
			    counts[i] == 10 ? linear / 25 : 0);
		}
		if (counts[i] == 8000 && kind == KVM_DIRTY_MANUAL)
			look_ups(&machine, "8000 slots");
		bench_machine_close(&machine);
	}
}

/* Ten slots, and a table that is told that there may be 64 or 32764. */
static void by_limit(void)
{
	static const unsigned int limits[] = {64, KERNEL_MOST};
	double sync[2];

	for (int i = 0; i < 2; i++) {
		const struct bench_setup setup = {
			.kind = KVM_DIRTY_MANUAL, .memory = GIB, .slots = 10, .limit = limits[i]};
		struct bench_machine machine;

		bench_machine_open(&machine, &setup);
		sync[i] = idle_sync(&machine);
		bench_machine_close(&machine);
	}
	row("10 slots, table limit 64", "idle sync", "us", sync[0], NULL, 0, 0);
	row("10 slots, table limit 32764", "idle sync", "us", sync[1], "limit 64", sync[0], 0);
}

static void by_memory(enum kvm_dirty_kind kind)
{
	static const uint64_t sizes[] = {1, 4, 16};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		const struct bench_setup setup = {
			.kind = kind, .memory = sizes[i] * GIB, .slots = 1};
		struct bench_machine machine;
		char name[64];

		snprintf(name, sizeof(name), "%s, %u GiB", kinds[kind], (unsigned int)sizes[i]);
		bench_machine_open(&machine, &setup);
		row(name, "idle sync", "us", idle_sync(&machine), NULL, 0,
		    sizes[i] == 16 ? 1000 : 0);
		bench_machine_close(&machine);
	}
}

/* The vCPU writes that share of 1 GiB; then one sync, and (with manual protect) the clears. */
static void by_share(enum kvm_dirty_kind kind)
{
	static const struct {
		const char *name;
		uint64_t count, stride;
		unsigned int runs;
	} shares[] = {
		{"0.1 % written", 261, 1000, 5},
		{"10 % written", 26112, 10, 3},
		{"100 % written", 261120, 1, 1},
	};
	const struct bench_setup setup = {.kind = kind, .memory = GIB, .slots = 1};
	struct bench_machine machine;

	bench_machine_open(&machine, &setup);
	for (size_t i = 0; i < sizeof(shares) / sizeof(*shares); i++) {
		uint64_t sync[RUNS], clear[RUNS];
		char name[64];

		for (unsigned int n = 0; n < shares[i].runs; n++) {
			bench_machine_write(&machine, shares[i].count, shares[i].stride);
			sync[n] = bench_machine_sync(&machine, false);
			clear[n] = bench_machine_clear(&machine);
		}
		snprintf(name, sizeof(name), "%s, 1 GiB, %s", kinds[kind], shares[i].name);
		row(name, "sync", "us", median_us(sync, shares[i].runs), NULL, 0, 0);
		if (kind == KVM_DIRTY_MANUAL)
			row(name, "clear, in stretches", "us", median_us(clear, shares[i].runs),
			    NULL, 0, 0);
	}
	bench_machine_close(&machine);
}

/* --- bitmaps of guests that do not fit here --- */

static void fill(uint64_t *words, uint64_t pages, double share)
{
	uint64_t seed = 7, count = (uint64_t)((double)pages * share);

	memset(words, share >= 1 ? 0xff : 0, BITMAP_WORDS(pages) * sizeof(*words));
	for (uint64_t i = 0; share < 1 && i < count; i++)
		bitmap_set(words, next_random(&seed) % pages);
}

static void synthetic(unsigned int gib, double share, const char *share_name, double limit_us)
{
	uint64_t pages = gib * (GIB >> 12), merge[SYNTHETIC_RUNS], runs[SYNTHETIC_RUNS], found = 0;
	uint64_t *words =
		aligned_alloc(2 << 20, (BITMAP_WORDS(pages) * 8 + (2 << 20) - 1) >> 21 << 21);
	struct page_map map;
	char name[64];

	if (!words || page_map_init(&map, pages) < 0)
		bench_fail("no memory", NULL);
	fill(words, pages, share);
	for (unsigned int i = 0; i < SYNTHETIC_RUNS; i++) {
		size_t first, count;
		uint64_t start;

		page_map_clear_all(&map);
		start = clock_ns();
		page_map_merge(&map, 0, words, pages);
		merge[i] = clock_ns() - start;
		start = clock_ns();
		page_map_for_each_run(&map, first, count) found += count;
		runs[i] = clock_ns() - start;
	}
	if (found != SYNTHETIC_RUNS * map.count)
		bench_fail("runs and count differ", NULL);
	snprintf(name, sizeof(name), "bitmap, %u GiB, %s", gib, share_name);
	row(name, "log to map", "us", median_us(merge, SYNTHETIC_RUNS), NULL, 0, 0);
	row(name, "map to runs", "us", median_us(runs, SYNTHETIC_RUNS), NULL, 0, limit_us);
	page_map_free(&map);
	free(words);
}

static void synthetics(void)
{
	synthetic(64, 0.1, "10 %", 12000);
	synthetic(128, 0, "0 %", 0);
	synthetic(128, 0.001, "0.1 %", 0);
	synthetic(128, 0.1, "10 %", 0);
	synthetic(128, 1, "100 %", 0);
	synthetic(512, 0, "0 %", 0);
	synthetic(512, 0.001, "0.1 %", 0);
	synthetic(512, 0.1, "10 %", 0);
	synthetic(512, 1, "100 %", 5000);
}

static const char help[] =
	"Usage: godwit bench dirty [--json] [--check] [--part NAME]...\n"
	"\n"
	"What dirty tracking costs: against the number of slots, memory, and the share that was\n"
	"written, for each back end; beside it a table of 32764 slots walked linearly (two to "
	"three\n"
	"minutes).\n"
	"\n"
	"  --json       rows of JSON, not a table\n"
	"  --check      exit status 1 when a limit is missed\n"
	"  --part NAME  only slots, memory, share or bitmaps (may be given several times)\n"
	"  --help       this text\n"
	"\n"
	"docs/dirty-tracking.md says how it is measured.\n";

enum { PART_SLOTS = 1, PART_MEMORY = 2, PART_SHARE = 4, PART_BITMAPS = 8 };

static unsigned int part_by_name(const char *name)
{
	static const char *const names[] = {"slots", "memory", "share", "bitmaps"};

	for (unsigned int i = 0; i < 4; i++)
		if (strcmp(name, names[i]) == 0)
			return 1u << i;
	fprintf(stderr, "godwit bench dirty: there is no part '%s'\n", name);
	exit(2);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"json", no_argument, NULL, 'j'},
						{"check", no_argument, NULL, 'c'},
						{"part", required_argument, NULL, 'p'},
						{"help", no_argument, NULL, 'h'},
						{0}};
	unsigned int parts = 0;
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'h') {
			fputs(help, stdout);
			return fflush(stdout) ? 1 : 0;
		}
		if (option == '?')
			return 2;
		json |= option == 'j';
		check |= option == 'c';
		if (option == 'p')
			parts |= part_by_name(optarg);
	}
	if (optind < argc) {
		fprintf(stderr, "godwit bench dirty: what is \"%s\"?\n", argv[optind]);
		return 2;
	}
	parts = parts ? parts : ~0u;
	if (parts & PART_BITMAPS)
		synthetics();
	if (parts & PART_SLOTS)
		by_limit();
	for (int kind = KVM_DIRTY_BITMAP; kind <= KVM_DIRTY_RING; kind++) {
		if (parts & PART_SLOTS)
			by_slots((enum kvm_dirty_kind)kind);
		if (parts & PART_MEMORY)
			by_memory((enum kvm_dirty_kind)kind);
		if (parts & PART_SHARE)
			by_share((enum kvm_dirty_kind)kind);
	}
	if (json)
		printf("\n]\n");
	return check && missed ? 1 : 0;
}
