/* SPDX-License-Identifier: Apache-2.0 */
#include "migration/ram_receive.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/bitmap.h"
#include "base/bytes.h"
#include "memory/pagescan.h"

int ram_receiver_init(struct ram_receiver *receiver, struct ram *ram, struct wire *wire,
		      struct error **err)
{
	*receiver = (struct ram_receiver){.ram = ram, .wire = wire};
	receiver->iov = calloc(WIRE_PACKET_MAX_PAGES, sizeof(*receiver->iov));
	if (!receiver->iov)
		goto out_of_memory;
	for (unsigned int i = 0; i < ram->count; i++) {
		size_t words = BITMAP_WORDS(ram_region_pages(&ram->regions[i]));

		receiver->received[i] = calloc(words, sizeof(uint64_t));
		receiver->suspect[i] = calloc(words, sizeof(uint64_t));
		if (!receiver->received[i] || !receiver->suspect[i])
			goto out_of_memory;
	}
	return 0;

out_of_memory:
	ram_receiver_free(receiver);
	return error_set(err, -ENOMEM, "out of memory for the migration's bitmaps");
}

void ram_receiver_free(struct ram_receiver *receiver)
{
	populate_free(receiver->populate);
	for (unsigned int i = 0; i < RAM_MAX_REGIONS; i++) {
		free(receiver->received[i]);
		free(receiver->suspect[i]);
	}
	free(receiver->iov);
	memset(receiver, 0, sizeof(*receiver));
}

/*
 * The region and the pages [first, first + count) of it, or NULL where they are not RAM, or not
 * behind those that the message named before (*next): a message of any size then costs no more
 * than one pass over memory.
 */
static struct ram_region *check_pages(struct ram *ram, uint32_t region, uint64_t first,
				      uint64_t count, uint64_t *next)
{
	uint64_t pages;

	if (region >= ram->count)
		return NULL;
	pages = ram_region_pages(&ram->regions[region]);
	if (count == 0 || first >= pages || count > pages - first || first < *next)
		return NULL;
	*next = first + count;
	return &ram->regions[region];
}

static int outside(struct error **err, const char *what)
{
	return error_set(err, -EPROTO,
			 "migration stream damaged: %s names pages outside the guest's "
			 "memory, or not in order",
			 what);
}

int ram_receiver_ranges(struct ram_receiver *receiver, struct reader *body, struct error **err)
{
	size_t count = reader_left(body) / 20, total = 0;
	struct populate_range *ranges;
	uint32_t last_index = 0;
	uint64_t next = 0;
	int status = 0;

	if (receiver->populate || reader_left(body) % 20)
		return error_set(err, -EPROTO, "migration stream damaged: RANGES");
	if (!count)
		return 0;
	ranges = calloc(count, sizeof(*ranges));
	if (!ranges)
		return error_set(err, -ENOMEM, "out of memory");
	for (; total < count && status == 0; total++) {
		uint32_t index = reader_get_u32(body);
		uint64_t first = reader_get_u64(body), pages = reader_get_u64(body);
		struct ram_region *region;

		if (index > last_index)
			next = 0;
		region = index < last_index
				 ? NULL
				 : check_pages(receiver->ram, index, first, pages, &next);
		last_index = index;
		if (!region) {
			status = outside(err, "RANGES");
			break;
		}
		ranges[total] = (struct populate_range){region->hva + first * RAM_PAGE_SIZE,
							pages * RAM_PAGE_SIZE};
	}
	if (status == 0)
		status = populate_start(&receiver->populate, ranges, (unsigned int)count, 0, err);
	free(ranges);
	return status;
}

bool ram_receiver_populated(const struct ram_receiver *receiver)
{
	return !receiver->populate || populate_failed(receiver->populate) ||
	       populate_done_bytes(receiver->populate) == populate_total_bytes(receiver->populate);
}

int ram_receiver_quiet(struct ram_receiver *receiver, struct error **err)
{
	int status = 0;

	if (receiver->populate) {
		status = populate_wait(receiver->populate, err);
		populate_free(receiver->populate);
		receiver->populate = NULL;
	}
	return status;
}

static void set_suspect(struct ram_receiver *receiver, uint32_t region, uint64_t page, bool suspect)
{
	uint64_t *word = &receiver->suspect[region][page / 64], bit = UINT64_C(1) << page % 64;

	if (suspect && !(*word & bit)) {
		*word |= bit;
		receiver->suspect_pages++;
	} else if (!suspect && (*word & bit)) {
		*word &= ~bit;
		receiver->suspect_pages--;
	}
}

/* Turns the ranges into iovecs; returns the number of pages or 0. */
static uint32_t read_ranges(struct ram_receiver *receiver, struct reader *body, uint32_t index,
			    uint32_t count)
{
	uint32_t pages = 0;
	uint64_t next = 0;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t first = reader_get_u64(body);
		uint32_t size = reader_get_u32(body);
		struct ram_region *region = check_pages(receiver->ram, index, first, size, &next);

		reader_get_u32(body);
		if (body->failed || !region || size > WIRE_PACKET_MAX_PAGES - pages)
			return 0;
		receiver->iov[i] = (struct iovec){region->hva + first * RAM_PAGE_SIZE,
						  (size_t)size * RAM_PAGE_SIZE};
		bitmap_set_range(receiver->received[index], first, size);
		pages += size;
	}
	return pages;
}

int ram_receiver_pages(struct ram_receiver *receiver, const struct wire_header *header,
		       struct reader *body, uint64_t deadline_us, struct error **err)
{
	uint32_t index = reader_get_u32(body), count = reader_get_u32(body), pages;
	const uint8_t *ranges = body->data + body->offset, *crcs;
	int status;

	if (body->failed || count == 0 || count > WIRE_PACKET_MAX_PAGES ||
	    index >= receiver->ram->count)
		return error_set(err, -EPROTO, "migration stream damaged: RAM of %u ranges", count);
	pages = read_ranges(receiver, body, index, count);
	crcs = reader_get_span(body, (size_t)pages * 4);
	if (!pages || !crcs || reader_left(body))
		return outside(err, "RAM");
	if (header->payload != (uint64_t)pages * RAM_PAGE_SIZE)
		return error_set(err, -EPROTO,
				 "migration stream damaged: %u pages announced, %llu bytes sent",
				 pages, (unsigned long long)header->payload);
	status = channel_receive(receiver->wire->channel, receiver->iov, count, deadline_us, err);
	if (status < 0)
		return status;
	receiver->pages += pages;
	for (uint32_t i = 0; i < count; i++, ranges += 16) {
		uint64_t first = bytes_get_u64(ranges);
		uint32_t size = bytes_get_u32(ranges + 8);
		const uint8_t *hva = receiver->ram->regions[index].hva + first * RAM_PAGE_SIZE;

		for (uint32_t p = 0; p < size; p++, crcs += 4, hva += RAM_PAGE_SIZE) {
			bool intact = pages_crc32c(0, hva, 1) == bytes_get_u32(crcs);

			if (!intact && (header->flags & WIRE_FLAG_LAST))
				return error_set(err, -EBADMSG,
						 "page %llu of region %u arrived damaged",
						 (unsigned long long)(first + p), index);
			set_suspect(receiver, index, first + p, !intact);
		}
	}
	return 0;
}

/* What never held data is zero already, and stays unallocated. */
static void zero_pages(struct ram_receiver *receiver, uint32_t index, uint64_t first, uint64_t size)
{
	const uint64_t *received = receiver->received[index];
	uint64_t end = first + size;
	size_t start = first, count;

	for (; (count = bitmap_next_run(received, end, start, &start)) != 0; start += count) {
		memset(receiver->ram->regions[index].hva + start * RAM_PAGE_SIZE, 0,
		       count * RAM_PAGE_SIZE);
		if (receiver->suspect_pages)
			for (uint64_t page = start; page < start + count; page++)
				set_suspect(receiver, index, page, false);
	}
}

int ram_receiver_zero(struct ram_receiver *receiver, struct reader *body, struct error **err)
{
	uint32_t index = reader_get_u32(body), count = reader_get_u32(body);
	uint64_t next = 0;

	if (body->failed || count == 0 || reader_left(body) != (size_t)count * 16)
		return error_set(err, -EPROTO, "migration stream damaged: ZERO");
	for (uint32_t i = 0; i < count; i++) {
		uint64_t first = reader_get_u64(body);
		uint32_t size = reader_get_u32(body);
		struct ram_region *region = check_pages(receiver->ram, index, first, size, &next);

		reader_get_u32(body);
		if (!region)
			return outside(err, "ZERO");
		zero_pages(receiver, index, first, size);
		receiver->zero_pages += size;
	}
	return 0;
}
