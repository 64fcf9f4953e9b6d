/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include "device/bus.h"

struct seen {
	uint64_t offset, value;
	unsigned int size, count;
	bool write;
};

static void handler(void *opaque, uint64_t offset, bool write, uint64_t *value, unsigned int size)
{
	struct seen *seen = opaque;

	seen->offset = offset;
	seen->write = write;
	seen->size = size;
	seen->count++;
	if (write)
		seen->value = *value;
	else
		*value = 0x1122334455667788;
}

static void test_dispatch(void **state)
{
	struct seen a = {0}, b = {0};
	struct error *err = NULL;
	struct bus bus = {0};
	uint64_t data = 0;

	assert_ok(bus_add(&bus, 0x3f8, 8, "b", handler, &b, &err), err);
	assert_ok(bus_add(&bus, 0x60, 1, "a", handler, &a, &err), err);

	bus_access(&bus, 0x3fd, false, &data, 1);
	assert_int_equal(b.offset, 5);
	assert_int_equal(data, 0x88);
	data = 0xabcd1234;
	bus_access(&bus, 0x3f8, true, &data, 2);
	assert_true(b.write);
	assert_int_equal(b.value, 0x1234);
	assert_int_equal(b.size, 2);
	assert_int_equal(a.count, 0);
	bus_access(&bus, 0x60, false, &data, 1);
	assert_int_equal(a.count, 1);
	bus_free(&bus);
}

static void test_unclaimed(void **state)
{
	struct seen seen = {0};
	struct error *err = NULL;
	struct bus bus = {0};
	uint64_t data = 0;

	bus_access(&bus, 0x1234, false, &data, 4);
	assert_int_equal(data, 0xffffffff);
	assert_ok(bus_add(&bus, 0x100, 4, "four", handler, &seen, &err), err);
	data = 0;
	bus_access(&bus, 0x104, false, &data, 8);
	assert_true(data == UINT64_MAX);
	data = 0;
	bus_access(&bus, 0xff, false, &data, 2);
	assert_int_equal(data, 0xffff);
	/* Begins inside, ends outside. */
	data = 0;
	bus_access(&bus, 0x102, false, &data, 4);
	assert_int_equal(data, 0xffffffff);
	bus_access(&bus, 0x102, true, &data, 4);
	assert_int_equal(seen.count, 0);
	bus_access(&bus, 0x102, false, &data, 2);
	assert_int_equal(seen.count, 1);
	bus_free(&bus);
}

static void test_refusals(void **state)
{
	struct error *err = NULL;
	struct bus bus = {0};

	assert_ok(bus_add(&bus, 0x100, 0x10, "first", handler, NULL, &err), err);
	assert_refused(bus_add(&bus, 0x10f, 1, "second", handler, NULL, &err), err, -EEXIST,
		       "second at 0x10f overlaps device first");
	assert_refused(bus_add(&bus, 0xf0, 0x11, "second", handler, NULL, &err), err, -EEXIST,
		       "first");
	assert_refused(bus_add(&bus, 0x200, 0, "empty", handler, NULL, &err), err, -EINVAL,
		       "empty");
	assert_refused(bus_add(&bus, UINT64_MAX, 2, "wraps", handler, NULL, &err), err, -EINVAL,
		       "wraps");
	assert_ok(bus_add(&bus, UINT64_MAX, 1, "last", handler, NULL, &err), err);
	assert_ok(bus_add(&bus, 0x110, 1, "next", handler, NULL, &err), err);
	assert_int_equal(bus.count, 3);
	bus_free(&bus);
}

static void test_many(void **state)
{
	struct error *err = NULL;
	struct seen seen[100];
	struct bus bus = {0};
	uint64_t data;

	memset(seen, 0, sizeof(seen));
	for (unsigned int i = 0; i < 100; i++) {
		unsigned int n = i * 37 % 100; /* in no order */

		assert_ok(bus_add(&bus, n * 16, 8, "many", handler, &seen[n], &err), err);
	}
	for (unsigned int address = 0; address < 1600; address++) {
		unsigned int before = seen[address / 16].count;

		bus_access(&bus, address, false, &data, 1);
		assert_int_equal(seen[address / 16].count - before, address % 16 < 8);
		if (address % 16 < 8)
			assert_int_equal(seen[address / 16].offset, address % 16);
	}
	bus_free(&bus);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dispatch),
		cmocka_unit_test(test_unclaimed),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
