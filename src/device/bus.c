/* SPDX-License-Identifier: Apache-2.0 */
#include "device/bus.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Index of the first range whose start is above address. */
static unsigned int upper_bound(const struct bus *bus, uint64_t address)
{
	unsigned int low = 0, high = bus->count;

	while (low < high) {
		unsigned int middle = low + (high - low) / 2;

		if (bus->ranges[middle].start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int bus_add(struct bus *bus, uint64_t start, uint64_t size, const char *name, bus_handler *handler,
	    void *opaque, struct error **err)
{
	unsigned int place = upper_bound(bus, start);
	const struct bus_range *other = NULL;

	if (size == 0 || start + size - 1 < start)
		return error_set(err, -EINVAL, "device %s: no possible range at 0x%" PRIx64, name,
				 start);
	if (place > 0 && start - bus->ranges[place - 1].start < bus->ranges[place - 1].size)
		other = &bus->ranges[place - 1];
	else if (place < bus->count && bus->ranges[place].start - start < size)
		other = &bus->ranges[place];
	if (other)
		return error_set(err, -EEXIST,
				 "device %s at 0x%" PRIx64 " overlaps device %s at 0x%" PRIx64,
				 name, start, other->name, other->start);

	if (bus->count == bus->capacity) {
		unsigned int capacity = bus->capacity ? bus->capacity * 2 : 8;
		struct bus_range *ranges = realloc(bus->ranges, capacity * sizeof(*ranges));

		if (!ranges)
			return error_set(err, -ENOMEM, "no memory for the bus of device %s", name);
		bus->ranges = ranges;
		bus->capacity = capacity;
	}
	memmove(&bus->ranges[place + 1], &bus->ranges[place],
		(bus->count - place) * sizeof(bus->ranges[0]));
	bus->ranges[place] = (struct bus_range){start, size, handler, opaque, name};
	bus->count++;
	return 0;
}

void bus_free(struct bus *bus)
{
	free(bus->ranges);
	*bus = (struct bus){0};
}

const struct bus_range *bus_find(const struct bus *bus, uint64_t address)
{
	unsigned int next = upper_bound(bus, address);

	if (next == 0 || address - bus->ranges[next - 1].start >= bus->ranges[next - 1].size)
		return NULL;
	return &bus->ranges[next - 1];
}

void bus_access(const struct bus *bus, uint64_t address, bool write, void *data, unsigned int size)
{
	const struct bus_range *range = bus_find(bus, address);
	uint64_t value = write ? 0 : UINT64_MAX;

	if (size > sizeof(value))
		size = sizeof(value);
	if (write)
		memcpy(&value, data, size);
	if (range && range->size - (address - range->start) >= size)
		range->handler(range->opaque, address - range->start, write, &value, size);
	if (!write)
		memcpy(data, &value, size);
}
