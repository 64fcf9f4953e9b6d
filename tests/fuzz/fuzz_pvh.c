/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel files: whatever the bytes, the loader refuses them with a sentence, or loads exactly what
 * they say, inside the guest's memory. The last byte of the input chooses the initrd's size.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "arch/x86/pvh.h"
#include "base/error.h"
#include "memory/ram.h"

#define RAM_SIZE   (8u << 20)
#define INITRD_MAX 0x2000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds)
{
	if (!holds)
		abort();
}

static void check_outcome(int result, struct error **err)
{
	require((result == 0) == (*err == NULL));
	if (*err)
		require(result < 0 && (*err)->code == result && *error_text(*err));
	error_free(err);
}

static void check_segment(struct ram *ram, const struct pvh_kernel *kernel, size_t size)
{
	const struct pvh_segment *segment = &kernel->segments[0];
	const uint8_t *loaded = ram_pointer(ram, segment->gpa, segment->memory_size);

	require(segment->file_size <= segment->memory_size);
	require(segment->offset <= size && segment->file_size <= size - segment->offset);
	require(loaded && !memcmp(loaded, kernel->image + segment->offset, segment->file_size));
	for (uint64_t i = segment->file_size; i < segment->memory_size; i++)
		require(loaded[i] == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t initrd[INITRD_MAX];
	static struct ram *ram;
	struct pvh_kernel kernel;
	struct error *err = NULL;
	size_t initrd_size;
	int parsed, checked, loaded;

	if (!ram && ram_create(&ram, RAM_SIZE, RAM_BACKING_PRIVATE, NULL) < 0)
		abort();
	initrd_size = size ? data[size - 1] * (INITRD_MAX / 256) : 0;

	parsed = pvh_parse(&kernel, data, size, &err);
	check_outcome(parsed, &err);
	if (parsed < 0)
		return 0;
	require(kernel.count <= PVH_MAX_SEGMENTS);
	checked = pvh_check(&kernel, ram, initrd_size, "console=ttyS0", &err);
	check_outcome(checked, &err);
	if (checked < 0)
		return 0;
	loaded = pvh_load(&kernel, ram, initrd_size ? initrd : NULL, initrd_size, "console=ttyS0",
			  &err);
	check_outcome(loaded, &err);
	require(loaded == 0); /* nothing is found out too late */
	if (kernel.count == 1)
		check_segment(ram, &kernel, size);
	return 0;
}
