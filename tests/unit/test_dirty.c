/* SPDX-License-Identifier: Apache-2.0 */
/* Real KVM: what a vCPU writes is in the log, until it is cleared; and nothing else is. */
#include "kvm_fixture.h"

#include <errno.h>
#include <time.h>
#include "base/bitmap.h"

#define PAGES 1024u /* of the 4 MiB */
#define WORDS BITMAP_WORDS(PAGES)

/*
 * mov $0x200000, %edi; mov $N, %ecx; 1: incl (%edi); add $0x2000, %edi; dec %ecx; jnz 1b;
 * out %al, $0x80; 2: jmp 2b
 */
#define CODE(pages)                                                                                \
	{                                                                                          \
		0xbf, 0, 0, 0x20, 0, 0xb9, (pages), 0, 0, 0, 0xff, 0x07, 0x81, 0xc7, 0, 0x20, 0,   \
			0, 0x49, 0x75, 0xf5, 0xe6, 0x80, 0xeb, 0xfe                                \
	}

static void take(void *opaque, size_t first, const uint64_t *words, size_t count)
{
	memcpy((uint64_t *)opaque + first, words, count * sizeof(*words));
}

static int harvest(struct kvm_dirty *dirty, struct kvm_slot *slot, uint64_t *map)
{
	uint64_t scratch[WORDS];
	int code = kvm_dirty_sync(dirty, false);

	memset(map, 0, WORDS * sizeof(*map));
	return code < 0 ? code : kvm_dirty_harvest(dirty, slot, scratch, take, map);
}

static void write_pages(struct fixture *fixture, uint8_t pages)
{
	const uint8_t code[] = CODE(pages);
	unsigned int before = fixture->exits;

	fixture_start(fixture, code, sizeof(code));
	assert_int_equal(fixture_command(fixture, KVM_VCPU_RUN), 0);
	for (int i = 0; i < 5000 && fixture->exits == before; i++)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	assert_int_equal(fixture->exits, before + 1);
	assert_int_equal(fixture_command(fixture, 0), 0);
}

/* Every second page from 2 MiB on, `pages` of them, and no other. */
static void assert_pages(const uint64_t *map, unsigned int pages)
{
	for (unsigned int page = 0; page < PAGES; page++) {
		bool wanted = page >= 512 && page < 512 + 2 * pages && page % 2 == 0;

		if (bitmap_test(map, page) != wanted)
			fail_msg("page %u is %s", page, wanted ? "missing" : "reported");
	}
}

static void test_log(void **state)
{
	uint64_t map[WORDS];
	struct fixture fixture;
	struct error *err = NULL;
	struct kvm_slot *slot;
	struct kvm_dirty *dirty = &fixture.vm.dirty;

	if (!fixture_open(&fixture))
		skip();
	slot = kvm_slots_find(&fixture.vm.slots, 0);
	assert_non_null(slot);
	assert_ok(kvm_dirty_start(&fixture.vm.dirty, slot, &err), err);
	assert_int_equal(harvest(dirty, slot, map), 0);
	if (dirty->initially_set) {
		assert_int_equal(bitmap_count(map, PAGES), PAGES);
		assert_int_equal(kvm_dirty_clear(dirty, slot, 0, PAGES, map), 0);
		assert_int_equal(harvest(dirty, slot, map), 0);
	}
	assert_int_equal(bitmap_count(map, PAGES), 0);

	write_pages(&fixture, 100);
	assert_int_equal(harvest(dirty, slot, map), 0);
	assert_pages(map, 100);
	if (dirty->manual) {
		/* Reported again until it is cleared; a part is cleared alone. */
		assert_int_equal(harvest(dirty, slot, map), 0);
		assert_pages(map, 100);
		assert_int_equal(kvm_dirty_clear(dirty, slot, 512, 64, map + 512 / 64), 0);
		assert_int_equal(harvest(dirty, slot, map), 0);
		assert_int_equal(bitmap_count(map, PAGES), 100 - 32);
		assert_int_equal(kvm_dirty_clear(dirty, slot, 0, PAGES, map), 0);
	}
	assert_int_equal(harvest(dirty, slot, map), 0);
	assert_int_equal(bitmap_count(map, PAGES), 0);

	/* What was cleared is protected: the next write is seen. */
	write_pages(&fixture, 3);
	assert_int_equal(harvest(dirty, slot, map), 0);
	assert_pages(map, 3);
	assert_ok(kvm_dirty_stop(&fixture.vm.dirty, slot, &err), err);
	fixture_close(&fixture);
}

static void test_bounds(void **state)
{
	uint64_t map[WORDS] = {0};
	struct fixture fixture;
	struct kvm_slot *slot;
	struct error *err = NULL;

	if (!fixture_open(&fixture))
		skip();
	slot = kvm_slots_find(&fixture.vm.slots, 0);
	assert_ok(kvm_dirty_start(&fixture.vm.dirty, slot, &err), err);
	if (fixture.vm.dirty.manual) {
		struct kvm_dirty *dirty = &fixture.vm.dirty;

		assert_int_equal(kvm_dirty_clear(dirty, slot, 1, 64, map), -EINVAL);
		assert_int_equal(kvm_dirty_clear(dirty, slot, 0, 65, map), -EINVAL);
		assert_int_equal(kvm_dirty_clear(dirty, slot, 64, PAGES, map), -EINVAL);
		assert_int_equal(kvm_dirty_clear(dirty, slot, PAGES, 64, map), -EINVAL);
		assert_int_equal(kvm_dirty_clear(dirty, slot, 0, UINT64_MAX, map), -EINVAL);
		assert_int_equal(kvm_dirty_clear(dirty, slot, PAGES - 64, 64, map), 0);
	}
	fixture_close(&fixture);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_log),
		cmocka_unit_test(test_bounds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
