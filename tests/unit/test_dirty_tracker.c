/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real KVM, every back end: a vCPU writes to random pages while its memory is copied by what the
 * tracker says; at the end the copy must equal the memory, every byte of it.
 */
#include "kvm_fixture.h"

#include <errno.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <time.h>
#include "memory/dirty_tracker.h"

#define MEMORY   (UINT64_C(16) << 20)
#define PAGES    (MEMORY >> 12)
#define WRITABLE 0x200000u /* here and in the 2047 pages above the guest writes */
#define DEVICE   0xc00000u /* ... and a device here */
#define ROM_PAGE 300u      /* of the odd layout, 65 pages */

/*
 * mov $seed, %eax; 1: imul $1664525, %eax; add $1013904223, %eax; mov %eax, %ebx; shr $10, %ebx;
 * and $0x7ff, %ebx; shl $12, %ebx; add $WRITABLE, %ebx; incl (%ebx); jmp 1b
 */
static const uint8_t random_writes[] = {
	0xb8, 1,    2,    3,    4,    0x69, 0xc0, 0x0d, 0x66, 0x19, 0x00, 0x05, 0x5f, 0xf3,
	0x6e, 0x3c, 0x89, 0xc3, 0xc1, 0xeb, 0x0a, 0x81, 0xe3, 0xff, 0x07, 0,    0,    0xc1,
	0xe3, 0x0c, 0x81, 0xc3, 0,    0,    0x20, 0,    0xff, 0x03, 0xeb, 0xdd,
};

static const struct fixture_options back_ends[] = {
	{.dirty = {.kind = KVM_DIRTY_BITMAP}},
	{.dirty = {.kind = KVM_DIRTY_MANUAL}},
	{.dirty = {.kind = KVM_DIRTY_RING, .ring_entries = KVM_DIRTY_RING_MIN}},
	{.dirty = {.kind = KVM_DIRTY_RING, .ring_entries = KVM_DIRTY_RING_MAX}},
};
#define BACK_ENDS (sizeof(back_ends) / sizeof(*back_ends))

/* Who copies memory by what it is told, as a migration does. */
struct copier {
	struct dirty_tracker *tracker;
	struct dirty_subscriber subscriber;
	struct page_map maps[RAM_MAX_REGIONS];
	uint8_t *copy;
	uint64_t copied; /* pages, the first full round not counted */
};

static void copier_open(struct copier *copier, struct dirty_tracker *tracker)
{
	const struct ram_region *region = &tracker->ram->regions[0];
	struct error *err = NULL;

	*copier = (struct copier){.tracker = tracker, .copy = malloc(MEMORY)};
	assert_non_null(copier->copy);
	assert_int_equal(page_map_init(&copier->maps[0], PAGES), 0);
	assert_ok(dirty_tracker_subscribe(tracker, &copier->subscriber, &err), err);
	memset(copier->copy, 0xee, MEMORY);
	/* All is to be copied, so all is to be armed first. */
	for (uint64_t page = 0; page < ram_region_pages(region); page++)
		page_map_set(&copier->maps[0], page);
}

static void copier_send(struct copier *copier)
{
	const uint8_t *memory = copier->tracker->ram->regions[0].hva;
	struct page_map *map = &copier->maps[0];
	size_t first, count;

	page_map_for_each_run(map, first, count)
	{
		assert_int_equal(dirty_tracker_clear(copier->tracker, &copier->subscriber, 0, first,
						     count, map->words),
				 0);
		memcpy(copier->copy + first * 4096, memory + first * 4096, count * 4096);
		copier->copied += count;
	}
	page_map_clear_all(map);
}

static void copier_harvest(struct copier *copier, bool stopped)
{
	assert_int_equal(
		dirty_tracker_harvest(copier->tracker, &copier->subscriber, copier->maps, stopped),
		0);
}

/* The vCPUs are parked. */
static void copier_check(struct copier *copier)
{
	const uint8_t *memory = copier->tracker->ram->regions[0].hva;

	copier_harvest(copier, true);
	copier_send(copier);
	for (uint64_t page = 0; page < PAGES; page++)
		if (memcmp(copier->copy + page * 4096, memory + page * 4096, 4096) != 0)
			fail_msg("%s: page %llu was written and not reported",
				 kvm_dirty_kind_name(kvm_dirty_kind(copier->tracker->dirty)),
				 (unsigned long long)page);
}

static void copier_close(struct copier *copier)
{
	dirty_tracker_unsubscribe(copier->tracker, &copier->subscriber);
	page_map_free(&copier->maps[0]);
	free(copier->copy);
}

/* Slots of 1, 63, 64, 65 and more pages, most of them not on a multiple of 64; one is read-only. */
static void add_odd_slots(struct fixture *fixture)
{
	static const uint64_t sizes[] = {1,   63,  64, 65, 107, 65, 63, 1, 1,  127,
					 129, 200, 64, 64, 1,   65, 63, 2, 66, 62};
	struct ram_region *region = &fixture->ram->regions[0];
	struct error *err = NULL;
	uint64_t page = 0;

	for (unsigned int i = 0; page < PAGES; i++) {
		uint64_t pages = sizes[i % (sizeof(sizes) / sizeof(*sizes))];

		if (pages > PAGES - page)
			pages = PAGES - page;
		assert_ok(kvm_slots_add(&fixture->vm.slots, page * 4096, pages * 4096,
					region->hva + page * 4096,
					page == ROM_PAGE ? KVM_MEM_READONLY : 0, &err),
			  err);
		page += pages;
	}
	assert_int_equal(kvm_slots_find(&fixture->vm.slots, ROM_PAGE * 4096)->flags,
			 KVM_MEM_READONLY);
}

static bool open_machine(struct fixture *fixture, struct dirty_tracker *tracker,
			 const struct fixture_options *back_end, enum ram_backing backing, bool odd)
{
	struct fixture_options options = *back_end;
	struct error *err = NULL;

	options.backing = backing;
	options.memory = MEMORY;
	options.no_slots = odd;
	if (!fixture_open_with(fixture, &options))
		return false;
	if (odd)
		add_odd_slots(fixture);
	assert_ok(dirty_tracker_init(tracker, fixture->ram, &fixture->vm.dirty, &fixture->vm.slots,
				     &err),
		  err);
	fixture_start_user(fixture, random_writes, sizeof(random_writes));
	return true;
}

static void close_machine(struct fixture *fixture, struct dirty_tracker *tracker)
{
	dirty_tracker_free(tracker);
	fixture_close(fixture);
}

static void device_write(struct fixture *fixture, uint64_t number)
{
	assert_int_equal(ram_write(fixture->ram, DEVICE + number % 64 * 8192 + 4000, &number,
				   sizeof(number)),
			 0);
}

/* Until the guest has written something that is not in the copy. */
static void wait_write(const struct copier *copier)
{
	const uint8_t *memory = copier->tracker->ram->regions[0].hva;

	for (int i = 0; i < 1000; i++) {
		if (memcmp(copier->copy + WRITABLE, memory + WRITABLE, 2048 * 4096) != 0)
			return;
		nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
	}
	{
		struct kvm_dirty_ring *ring = copier->tracker->dirty->rings;

		if (ring)
			fail_msg("the guest does not write: %s, %llu full exits, next %u, overrun "
				 "%d",
				 ring->vcpu->failure, (unsigned long long)ring->full_exits,
				 ring->next, copier->tracker->dirty->overrun);
	}
	fail_msg("the guest does not write");
}

static void rounds(struct fixture *fixture, struct copier *copier, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++) {
		copier_send(copier);
		device_write(fixture, i);
		wait_write(copier);
		nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
		copier_harvest(copier, false);
	}
}

static void follow(const struct fixture_options *back_end, enum ram_backing backing, bool odd)
{
	struct dirty_tracker tracker;
	struct fixture fixture;
	struct copier copier;

	if (!open_machine(&fixture, &tracker, back_end, backing, odd))
		return;
	copier_open(&copier, &tracker);
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
	rounds(&fixture, &copier, 12);
	assert_int_equal(fixture_command(&fixture, 0), 0);
	copier_check(&copier);
	assert_true(copier.copied > PAGES + 12); /* the guest did write, and was seen */
	assert_int_equal(fixture.exit_reason, -1);

	/* The move did not happen: the guest runs on, and nothing is forgotten. */
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
	rounds(&fixture, &copier, 4);
	assert_int_equal(fixture_command(&fixture, 0), 0);
	copier_check(&copier);
	copier_close(&copier);
	close_machine(&fixture, &tracker);
}

static void test_follow(void **state)
{
	for (size_t i = 0; i < BACK_ENDS; i++) {
		follow(&back_ends[i], RAM_BACKING_SHARED, false);
		follow(&back_ends[i], RAM_BACKING_SHARED, true);
	}
}

static void test_follow_huge(void **state)
{
	for (size_t i = 0; i < BACK_ENDS; i++) {
		follow(&back_ends[i], RAM_BACKING_PRIVATE, false);
		follow(&back_ends[i], RAM_BACKING_PRIVATE, true);
		follow(&back_ends[i], RAM_BACKING_HUGETLB, false);
	}
}

/* Two look at the same time, each clearing what it copies: neither takes from the other. */
static void test_two_subscribers(void **state)
{
	for (size_t i = 0; i < BACK_ENDS; i++) {
		struct dirty_tracker tracker;
		struct fixture fixture;
		struct copier first, second;

		if (!open_machine(&fixture, &tracker, &back_ends[i], RAM_BACKING_SHARED, i % 2))
			continue;
		copier_open(&first, &tracker);
		assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
		rounds(&fixture, &first, 2);
		copier_open(&second, &tracker);
		for (unsigned int round = 0; round < 6; round++) {
			rounds(&fixture, &first, 1);
			rounds(&fixture, &second, round % 2);
		}
		assert_int_equal(fixture_command(&fixture, 0), 0);
		copier_check(&second);
		copier_check(&first);

		/* What the first harvested and did not send is still its own when the other goes.
		 */
		assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
		rounds(&fixture, &second, 2);
		copier_close(&second);
		assert_int_equal(fixture_command(&fixture, 0), 0);
		copier_check(&first);
		copier_close(&first);
		close_machine(&fixture, &tracker);
	}
}

struct stopper {
	struct fixture *fixture;
	_Atomic(bool) end;
};

static void *stop_and_go(void *opaque)
{
	struct stopper *stopper = opaque;

	while (!atomic_load(&stopper->end)) {
		if (fixture_command(stopper->fixture, 0) < 0 ||
		    fixture_command(stopper->fixture, KVM_VCPU_RUN) < 0)
			return stopper;
		nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
	}
	return NULL;
}

/* The vCPU is stopped, and goes on, in the middle of harvests. */
static void test_stop_in_harvest(void **state)
{
	for (size_t i = 0; i < BACK_ENDS; i++) {
		struct dirty_tracker tracker;
		struct fixture fixture;
		struct stopper stopper = {.fixture = &fixture};
		struct copier copier;
		pthread_t thread;
		void *failed;

		if (!open_machine(&fixture, &tracker, &back_ends[i], RAM_BACKING_SHARED, false))
			continue;
		copier_open(&copier, &tracker);
		assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
		assert_int_equal(pthread_create(&thread, NULL, stop_and_go, &stopper), 0);
		rounds(&fixture, &copier, 20);
		atomic_store(&stopper.end, true);
		pthread_join(thread, &failed);
		assert_null(failed);
		assert_int_equal(fixture_command(&fixture, 0), 0);
		copier_check(&copier);
		copier_close(&copier);
		close_machine(&fixture, &tracker);
	}
}

/* A small ring that nobody reaps overflows many times; the vCPU empties it itself. */
static void test_ring_overflow(void **state)
{
	struct dirty_tracker tracker;
	struct fixture fixture;
	struct copier copier;

	if (!open_machine(&fixture, &tracker, &back_ends[2], RAM_BACKING_SHARED, false))
		skip();
	copier_open(&copier, &tracker);
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
	rounds(&fixture, &copier, 1);
	copier_send(&copier);
	for (int i = 0; i < 5000 && atomic_load(&fixture.vcpu.ring.full_exits) < 3; i++)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	assert_true(atomic_load(&fixture.vcpu.ring.full_exits) >= 3);
	assert_true(atomic_load(&fixture.vcpu.ring.pages) > 3 * 448);
	assert_int_equal(fixture_command(&fixture, 0), 0);
	copier_check(&copier);
	copier_close(&copier);
	close_machine(&fixture, &tracker);
}

/*
 * Code at privilege level 0 overruns the ring where KVM emulates it. Then that is said, and the
 * guest goes on; where it does not come to this, no page is missed.
 */
static void test_ring_overrun(void **state)
{
	struct dirty_tracker tracker;
	struct fixture fixture;
	struct copier copier;
	int code = 0;

	if (!open_machine(&fixture, &tracker, &back_ends[2], RAM_BACKING_SHARED, false))
		skip();
	fixture_start(&fixture, random_writes, sizeof(random_writes));
	copier_open(&copier, &tracker);
	copier_send(&copier);
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
	for (int i = 0; i < 20 && code == 0; i++) {
		wait_write(&copier);
		nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
		code = dirty_tracker_harvest(&tracker, &copier.subscriber, copier.maps, false);
		if (code == 0)
			copier_send(&copier);
	}
	assert_int_equal(fixture_command(&fixture, 0), 0);
	if (code < 0) {
		print_message("the kernel has overrun the ring\n");
		assert_int_equal(code, -EOVERFLOW);
		assert_int_equal(
			dirty_tracker_harvest(&tracker, &copier.subscriber, copier.maps, true),
			-EOVERFLOW);
		memcpy(copier.copy, fixture.ram->regions[0].hva, MEMORY);
		assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
		wait_write(&copier);
		assert_int_equal(fixture_command(&fixture, 0), 0);
		assert_int_equal(fixture.exit_reason, -1);
	} else {
		copier_check(&copier);
	}
	copier_close(&copier);
	close_machine(&fixture, &tracker);
}

/* In the window nothing is cleared: what was harvested there is there again when the guest runs on.
 */
static void test_window_clears_nothing(void **state)
{
	for (size_t i = 1; i < BACK_ENDS; i++) {
		struct dirty_tracker tracker;
		struct fixture fixture;
		struct copier copier;
		uint64_t found;

		if (!open_machine(&fixture, &tracker, &back_ends[i], RAM_BACKING_SHARED, false))
			continue;
		copier_open(&copier, &tracker);
		assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
		rounds(&fixture, &copier, 3);
		copier_send(&copier);
		wait_write(&copier);
		assert_int_equal(fixture_command(&fixture, 0), 0);
		copier_harvest(&copier, true);
		found = copier.maps[0].count;
		assert_true(found > 0);
		page_map_clear_all(&copier.maps[0]); /* "sent", and then the move fails */
		copier_harvest(&copier, false);
		assert_int_equal(copier.maps[0].count, found);
		copier_close(&copier);
		close_machine(&fixture, &tracker);
	}
}

/* The log is off after the last subscriber, and a new one trusts nothing of before. */
static void test_off_and_on(void **state)
{
	for (size_t i = 0; i < BACK_ENDS; i++) {
		struct dirty_tracker tracker;
		struct fixture fixture;
		struct copier copier;
		struct kvm_slot *slot;

		if (!open_machine(&fixture, &tracker, &back_ends[i], RAM_BACKING_SHARED, i % 2))
			continue;
		assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
		for (int time = 0; time < 3; time++) {
			copier_open(&copier, &tracker);
			assert_true(fixture.ram->logging);
			kvm_slots_for_each(&fixture.vm.slots, slot)
				assert_int_equal(!!(slot->flags & KVM_MEM_LOG_DIRTY_PAGES),
						 !(slot->flags & KVM_MEM_READONLY));
			rounds(&fixture, &copier, 2);
			if (time == 2) {
				assert_int_equal(fixture_command(&fixture, 0), 0);
				copier_check(&copier);
			}
			copier_close(&copier);
			assert_false(fixture.ram->logging);
			kvm_slots_for_each(&fixture.vm.slots, slot)
				assert_int_equal(slot->flags & KVM_MEM_LOG_DIRTY_PAGES, 0);
		}
		close_machine(&fixture, &tracker);
	}
}

/* A write to a read-only slot leaves the guest as MMIO: neither memory nor a log sees it. */
static void test_read_only(void **state)
{
	/* mov $ROM, %edi; 1: incl (%edi); out %al, $0x80; 2: jmp 2b */
	static const uint8_t code[] = {0xbf, 0x10, 0xc0, 0x12, 0,   0xff,
				       0x07, 0xe6, 0x80, 0xeb, 0xfe};

	for (size_t i = 0; i < BACK_ENDS; i++) {
		struct dirty_tracker tracker;
		struct fixture fixture;
		struct copier copier;
		uint64_t value = 7;

		if (!open_machine(&fixture, &tracker, &back_ends[i], RAM_BACKING_SHARED, true))
			continue;
		assert_int_equal(ram_write(fixture.ram, 0x12c010, &value, 4), 0);
		copier_open(&copier, &tracker);
		copier_send(&copier);
		fixture_start(&fixture, code, sizeof(code));
		copier_harvest(&copier, false);
		copier_send(&copier);
		assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
		for (int tries = 0; tries < 5000 && fixture.last_port != 0x80; tries++)
			nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		assert_int_equal(fixture.last_port, 0x80);
		assert_int_equal(fixture_command(&fixture, 0), 0);
		assert_int_equal(ram_read(fixture.ram, 0x12c010, &value, 4), 0);
		assert_int_equal(value, 7);
		copier_harvest(&copier, true);
		assert_false(bitmap_test(copier.maps[0].words, ROM_PAGE));
		/* What the monitor writes there is seen. */
		value = 9;
		assert_int_equal(ram_write(fixture.ram, 0x12c010, &value, 4), 0);
		copier_harvest(&copier, true);
		assert_true(bitmap_test(copier.maps[0].words, ROM_PAGE));
		copier_check(&copier);
		copier_close(&copier);
		close_machine(&fixture, &tracker);
	}
}

/* Random stretches of random bits, over slots that lie anyhow: exactly those bits are cleared. */
static void test_clear_is_exact(void **state)
{
	uint64_t seed = random_seed();
	struct dirty_tracker tracker;
	struct fixture fixture;
	struct copier copier;
	struct page_map expected;

	if (!open_machine(&fixture, &tracker, &back_ends[1], RAM_BACKING_SHARED, true))
		skip();
	if (!fixture.vm.dirty.initially_set) {
		close_machine(&fixture, &tracker);
		skip();
	}
	copier_open(&copier, &tracker);
	assert_int_equal(page_map_init(&expected, PAGES), 0);
	page_map_clear_all(&copier.maps[0]);
	copier_harvest(&copier, false); /* every bit but the read-only slot's */
	assert_int_equal(copier.maps[0].count, PAGES - 65);
	page_map_merge_map(&expected, &copier.maps[0]);
	for (int round = 0; round < 60; round++) {
		uint64_t seen[PAGES / 64], first = random_next(&seed) % PAGES;
		uint64_t count = random_next(&seed) % (PAGES - first) + 1;

		for (size_t w = 0; w < PAGES / 64; w++)
			seen[w] = random_next(&seed) & random_next(&seed) & random_next(&seed);
		assert_int_equal(
			dirty_tracker_clear(&tracker, &copier.subscriber, 0, first, count, seen),
			0);
		for (uint64_t page = first; page < first + count; page++)
			if (bitmap_test(seen, page))
				bitmap_clear_range(expected.words, page, 1);
		page_map_clear_all(&copier.maps[0]);
		copier_harvest(&copier, false);
		assert_memory_equal(copier.maps[0].words, expected.words, PAGES / 8);
	}
	page_map_free(&expected);
	copier_close(&copier);
	close_machine(&fixture, &tracker);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_follow),
		cmocka_unit_test(test_follow_huge),
		cmocka_unit_test(test_two_subscribers),
		cmocka_unit_test(test_stop_in_harvest),
		cmocka_unit_test(test_ring_overflow),
		cmocka_unit_test(test_ring_overrun),
		cmocka_unit_test(test_window_clears_nothing),
		cmocka_unit_test(test_off_and_on),
		cmocka_unit_test(test_read_only),
		cmocka_unit_test(test_clear_is_exact),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
