/* SPDX-License-Identifier: Apache-2.0 */
/* Against a model that is a plain list. The kernel is played by ioctl() below. */
#include "unit.h"

#include <errno.h>
#include <linux/kvm.h>
#include "kvm/slots.h"

#define MODEL_MAX 160
#define FAKE_FD   1000
#define STEP      UINT64_C(0x10000)

static struct {
	struct kvm_userspace_memory_region slots[MODEL_MAX]; /* by id; size 0: free */
	unsigned int calls, fail_after;                      /* fail_after 0: never */
} kernel;

int ioctl(int fd, unsigned long request, ...);

int ioctl(int fd, unsigned long request, ...)
{
	struct kvm_userspace_memory_region *region;
	va_list arguments;

	va_start(arguments, request);
	region = va_arg(arguments, void *);
	va_end(arguments);
	assert_int_equal(fd, FAKE_FD);
	assert_int_equal(request, KVM_SET_USER_MEMORY_REGION);
	assert_in_range(region->slot, 0, MODEL_MAX - 1);
	if (kernel.fail_after && ++kernel.calls >= kernel.fail_after) {
		errno = ENOMEM;
		return -1;
	}
	kernel.slots[region->slot] = *region;
	return 0;
}

struct model {
	uint64_t gpa[MODEL_MAX], size[MODEL_MAX], hva[MODEL_MAX];
	unsigned int count;
};

static int model_find(const struct model *model, uint64_t gpa)
{
	for (unsigned int i = 0; i < model->count; i++)
		if (gpa >= model->gpa[i] && gpa - model->gpa[i] < model->size[i])
			return (int)i;
	return -1;
}

static bool model_shows(const struct model *model, uint64_t hva)
{
	for (unsigned int i = 0; i < model->count; i++)
		if (hva >= model->hva[i] && hva - model->hva[i] < model->size[i])
			return true;
	return false;
}

static uint64_t model_next(const struct model *model, uint64_t gpa)
{
	uint64_t found = UINT64_MAX;

	for (unsigned int i = 0; i < model->count; i++)
		if (model->gpa[i] >= gpa && model->gpa[i] < found)
			found = model->gpa[i];
	return found;
}

static bool model_free_range(const struct model *model, uint64_t gpa, uint64_t size)
{
	for (unsigned int i = 0; i < model->count; i++)
		if (gpa < model->gpa[i] + model->size[i] && model->gpa[i] < gpa + size)
			return false;
	return true;
}

static void check_table(const struct kvm_slots *table, const struct model *model)
{
	unsigned int used = 0, walked = 0;
	const struct kvm_slot *slot;
	uint64_t end = 0;

	assert_int_equal(kvm_slots_count(table), model->count);
	kvm_slots_for_each(table, slot)
	{
		const struct kvm_userspace_memory_region *there = &kernel.slots[slot->id];

		assert_true(slot->gpa >= end);
		end = slot->gpa + slot->size;
		assert_int_equal(there->guest_phys_addr, slot->gpa);
		assert_int_equal(there->memory_size, slot->size);
		assert_int_equal(there->userspace_addr, (uintptr_t)slot->hva);
		assert_ptr_equal(kvm_slots_by_id(table, slot->id), slot);
		walked++;
	}
	assert_int_equal(walked, model->count);
	for (unsigned int id = 0; id < MODEL_MAX; id++)
		used += kernel.slots[id].memory_size != 0;
	assert_int_equal(used, model->count);
}

/* Half of the slots show memory that others show too, overlapping in any way. */
static uint64_t random_hva(uint64_t gpa, uint64_t *seed)
{
	return random_next(seed) % 2 ? gpa + (1 << 30) : (1 << 28) + random_next(seed) % 32 * STEP;
}

static void random_change(struct kvm_slots *table, struct model *model, uint64_t *seed)
{
	uint64_t gpa = random_next(seed) % 256 * STEP;
	uint64_t size = (1 + random_next(seed) % 4) * STEP;
	uint64_t hva = random_hva(gpa, seed);
	struct error *err = NULL;
	int code;

	if (random_next(seed) % 5 < 3) {
		code = kvm_slots_add(table, gpa, size, (void *)(uintptr_t)hva, 0, &err);
		if (!model_free_range(model, gpa, size)) {
			assert_int_equal(code, -EEXIST);
		} else if (model->count == table->limit) {
			assert_int_equal(code, -ENOSPC);
		} else {
			assert_ok(code, err);
			model->gpa[model->count] = gpa;
			model->hva[model->count] = hva;
			model->size[model->count++] = size;
		}
	} else {
		int at = model_find(model, gpa);

		code = kvm_slots_remove(table, gpa, &err);
		if (at < 0 || model->gpa[at] != gpa) {
			assert_int_equal(code, -ENOENT);
		} else {
			assert_ok(code, err);
			model->count--;
			model->gpa[at] = model->gpa[model->count];
			model->hva[at] = model->hva[model->count];
			model->size[at] = model->size[model->count];
		}
	}
	error_free(&err);
}

static void check_look_ups(const struct kvm_slots *table, const struct model *model, uint64_t *seed)
{
	uint64_t gpa = random_next(seed) % (300 * STEP), hva = random_hva(gpa, seed) + gpa % STEP;
	const struct kvm_slot *slot = kvm_slots_find(table, gpa);
	int at = model_find(model, gpa);

	assert_int_equal(slot != NULL, at >= 0);
	if (slot)
		assert_int_equal(slot->gpa, model->gpa[at]);
	slot = kvm_slots_find_hva(table, (void *)(uintptr_t)hva);
	assert_int_equal(slot != NULL, model_shows(model, hva));
	if (slot)
		assert_true(hva - (uintptr_t)slot->hva < slot->size);
	slot = kvm_slots_next(table, gpa);
	assert_int_equal(slot ? slot->gpa : UINT64_MAX, model_next(model, gpa));
}

/* A million operations: changes and look-ups in turn. */
static void test_random(void **state)
{
	uint64_t seed = random_seed();
	struct kvm_slots table;
	struct model model = {0};

	memset(&kernel, 0, sizeof(kernel));
	assert_int_equal(kvm_slots_init(&table, FAKE_FD, 60, NULL), 0);
	for (int round = 0; round < 250000; round++) {
		random_change(&table, &model, &seed);
		check_look_ups(&table, &model, &seed);
		if (round % 64 == 0)
			check_table(&table, &model);
	}
	kvm_slots_free(&table);
}

/* Memory follows use: 16 first, doubled, never beyond the limit; nothing moves; an id is used
 * again. */
static void test_growth(void **state)
{
	struct kvm_slot *slots[40];
	struct error *err = NULL;
	struct kvm_slots table;

	memset(&kernel, 0, sizeof(kernel));
	assert_int_equal(kvm_slots_init(&table, FAKE_FD, 40, NULL), 0);
	assert_int_equal(table.capacity, 0);
	assert_null(kvm_slots_find(&table, 0));
	for (unsigned int i = 0; i < 40; i++) {
		assert_ok(kvm_slots_add(&table, i * STEP, STEP, (void *)0x1000000, 0, &err), err);
		assert_int_equal(table.capacity, i < 16 ? 16 : i < 32 ? 32 : 40);
		slots[i] = kvm_slots_find(&table, i * STEP);
	}
	for (unsigned int i = 0; i < 40; i++) {
		assert_ptr_equal(kvm_slots_find(&table, i * STEP + 5), slots[i]);
		assert_int_equal(slots[i]->gpa, i * STEP);
	}
	assert_refused(kvm_slots_add(&table, 40 * STEP, STEP, (void *)0x1000000, 0, &err), err,
		       -ENOSPC, "40 memory slots");
	assert_int_equal(kvm_slots_count(&table), 40);
	assert_ok(kvm_slots_remove(&table, 7 * STEP, &err), err);
	assert_ok(kvm_slots_add(&table, 99 * STEP, STEP, (void *)0x1000000, 0, &err), err);
	assert_int_equal(kvm_slots_find(&table, 99 * STEP)->id, 7);
	kvm_slots_free(&table);
}

static struct {
	struct kvm_slots table;
	_Atomic(bool) end;
	_Atomic(uint64_t) look_ups;
} shared;

/* The slots at even places are always there, those at odd ones come and go. */
static void *reader(void *opaque)
{
	uint64_t seed = (uintptr_t)opaque;

	while (!atomic_load(&shared.end)) {
		uint64_t at = random_next(&seed) % 64 * 2, gpa = at * STEP;
		struct kvm_slot *slot = kvm_slots_find(&shared.table, gpa + 77);

		if (!slot || slot->gpa != gpa)
			return (void *)1;
		slot = kvm_slots_find_hva(&shared.table, (void *)(uintptr_t)((1 << 30) + gpa));
		if (!slot || slot->gpa != gpa)
			return (void *)2;
		slot = kvm_slots_next(&shared.table, gpa + STEP);
		if (at < 126 && !slot)
			return (void *)3;
		atomic_fetch_add(&shared.look_ups, 1);
	}
	return NULL;
}

static void add_or_fail(uint64_t at)
{
	struct error *err = NULL;

	assert_ok(kvm_slots_add(&shared.table, at * STEP, STEP,
				(void *)(uintptr_t)((1 << 30) + at * STEP), 0, &err),
		  err);
}

static void test_readers(void **state)
{
	uint64_t seed = random_seed(), until = clock_us() + 500000;
	bool there[64] = {false};
	pthread_t threads[2];
	void *result;

	memset(&kernel, 0, sizeof(kernel));
	assert_int_equal(kvm_slots_init(&shared.table, FAKE_FD, MODEL_MAX, NULL), 0);
	for (unsigned int i = 0; i < 128; i += 2)
		add_or_fail(i);
	for (uintptr_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, reader, (void *)(i + 1)), 0);
	while (clock_us() < until || atomic_load(&shared.look_ups) < 1000) {
		uint64_t at = random_next(&seed) % 64;

		if (there[at])
			assert_int_equal(kvm_slots_remove(&shared.table, (2 * at + 1) * STEP, NULL),
					 0);
		else
			add_or_fail(2 * at + 1);
		there[at] = !there[at];
	}
	atomic_store(&shared.end, true);
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], &result);
		assert_null(result);
	}
	kvm_slots_free(&shared.table);
}

static void test_refusals(void **state)
{
	struct error *err = NULL;
	struct kvm_slots table;
	void *hva = (void *)0x1000000;
	struct kvm_slot *slot;

	memset(&kernel, 0, sizeof(kernel));
	assert_int_equal(kvm_slots_init(&table, FAKE_FD, 8, NULL), 0);
	assert_refused(kvm_slots_add(&table, 0x1001, STEP, hva, 0, &err), err, -EINVAL, "4 KiB");
	assert_refused(kvm_slots_add(&table, 0, 0, hva, 0, &err), err, -EINVAL, "empty");
	assert_refused(kvm_slots_add(&table, UINT64_MAX - 0xfff, 0x2000, hva, 0, &err), err,
		       -EINVAL, "end of the address space");
	assert_ok(kvm_slots_add(&table, 0x10000, 0x10000, hva, 0, &err), err);
	assert_refused(kvm_slots_add(&table, 0, 0x11000, hva, 0, &err), err, -EEXIST,
		       "[0x10000, 0x20000)");
	assert_refused(kvm_slots_add(&table, 0x1f000, 0x1000, hva, 0, &err), err, -EEXIST,
		       "0x1f000");
	assert_refused(kvm_slots_remove(&table, 0x11000, &err), err, -ENOENT, "0x11000");

	/* What the kernel refuses leaves nothing behind. */
	kernel.fail_after = 1;
	assert_refused(kvm_slots_add(&table, 0, 0x1000, hva, 0, &err), err, -ENOMEM, "refuses");
	assert_int_equal(kvm_slots_count(&table), 1);
	assert_null(kvm_slots_find(&table, 0));
	assert_refused(kvm_slots_remove(&table, 0x10000, &err), err, -ENOMEM, "0x10000");
	assert_int_equal(kvm_slots_count(&table), 1);
	kernel.fail_after = 0;
	slot = kvm_slots_find(&table, 0x10000);
	assert_ok(kvm_slots_set_logging(&table, slot, true, &err), err);
	assert_int_equal(kernel.slots[slot->id].flags, KVM_MEM_LOG_DIRTY_PAGES);
	assert_ok(kvm_slots_set_logging(&table, slot, false, &err), err);
	assert_int_equal(kernel.slots[slot->id].flags, 0);
	kvm_slots_free(&table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_growth),
		cmocka_unit_test(test_readers),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
