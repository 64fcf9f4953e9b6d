/* SPDX-License-Identifier: Apache-2.0 */
#include "migration/ram_send.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/bitmap.h"
#include "base/buffer.h"
#include "base/bytes.h"
#include "memory/pagemap.h"
#include "memory/pagescan.h"

/* The log is re-armed a stretch of so many pages at a time: 64 MiB. */
#define CLEAR_PAGES 16384u
/* Granule of RANGES. */
#define BLOCK_PAGES 512u
/* Pages in one RAM message: what was just checksummed is still in the cache when it is sent, and
 * what was just received when it is checked (measured: a fifth less time for a move than with 256).
 */
#define PACKET_PAGES 64u
_Static_assert(PACKET_PAGES <= WIRE_PACKET_MAX_PAGES, "a packet that no receiver takes");
/* Runs in one ZERO message. */
#define ZERO_RUNS 1024u

#define RANGE_SIZE     16u /* u64 first page, u32 pages, u32 zero */
#define RAM_BODY_START 8u  /* u32 region, u32 ranges */

int ram_sender_init(struct ram_sender *sender, const struct migration_ops *ops, void *opaque,
		    struct wire *wire, struct error **err)
{
	*sender = (struct ram_sender){
		.ops = ops, .opaque = opaque, .ram = ops->ram(opaque), .wire = wire};
	sender->iov = calloc(2 + PACKET_PAGES, sizeof(*sender->iov));
	sender->body = calloc(1, RAM_BODY_START + PACKET_PAGES * (RANGE_SIZE + 4));
	sender->zero_body = calloc(1, RAM_BODY_START + ZERO_RUNS * RANGE_SIZE);
	sender->crcs = calloc(PACKET_PAGES, sizeof(*sender->crcs));
	if (!sender->iov || !sender->body || !sender->zero_body || !sender->crcs)
		goto out_of_memory;
	for (unsigned int i = 0; i < sender->ram->count; i++) {
		uint64_t pages = ram_region_pages(&sender->ram->regions[i]);

		if (page_map_init(&sender->pending[i], pages) < 0)
			goto out_of_memory;
	}
	return 0;

out_of_memory:
	ram_sender_free(sender);
	return error_set(err, -ENOMEM, "out of memory for the migration's bitmaps");
}

void ram_sender_free(struct ram_sender *sender)
{
	for (unsigned int i = 0; i < RAM_MAX_REGIONS; i++)
		page_map_free(&sender->pending[i]);
	free(sender->iov);
	free(sender->body);
	free(sender->zero_body);
	free(sender->crcs);
	memset(sender, 0, sizeof(*sender));
}

/* Re-arms the log where `map` is set, a stretch at a time; clean stretches cost no system call. */
static int clear_region(struct ram_sender *sender, unsigned int region, const uint64_t *map,
			uint64_t pages, struct error **err)
{
	for (uint64_t first = 0; first < pages; first += CLEAR_PAGES) {
		uint64_t count = pages - first < CLEAR_PAGES ? pages - first : CLEAR_PAGES;
		size_t found;
		int status;

		if (!bitmap_next_run(map, first + count, first, &found))
			continue;
		status = sender->ops->log_clear(sender->opaque, region, first, count, map);
		if (status < 0)
			return error_set_errno(err, status, "cannot re-arm the dirty log");
	}
	return 0;
}

static void count_pending(struct ram_sender *sender)
{
	sender->pending_pages = 0;
	for (unsigned int i = 0; i < sender->ram->count; i++)
		sender->pending_pages += sender->pending[i].count;
}

static int scan_region(struct ram_sender *sender, unsigned int index, struct error **err)
{
	int status = pagemap_scan(&sender->ram->regions[index], sender->pending[index].words, err);

	page_map_refresh(&sender->pending[index]);
	return status;
}

static int arm_untouched(struct ram_sender *sender, unsigned int index, struct error **err)
{
	const struct page_map *touched = &sender->pending[index];
	size_t words = BITMAP_WORDS(touched->pages);
	uint64_t *untouched = malloc(words * sizeof(*untouched));
	int status;

	if (!untouched)
		return error_set(err, -ENOMEM, "out of memory for the migration's bitmaps");
	for (size_t w = 0; w < words; w++)
		untouched[w] = ~touched->words[w];
	if (touched->pages % 64)
		untouched[touched->pages / 64] &= (UINT64_C(1) << touched->pages % 64) - 1;
	status = clear_region(sender, index, untouched, touched->pages, err);
	free(untouched);
	return status;
}

/*
 * Where the log starts with every bit set, the bits of untouched pages are cleared (and the pages
 * armed) at once. A page first touched between the scan and the clear would be lost that way, so
 * the page map is read again afterwards: what is touched then is pending.
 */
int ram_sender_scan(struct ram_sender *sender, struct error **err)
{
	bool initially_set = sender->ops->log_initially_set(sender->opaque);

	sender->untouched_pages = 0;
	for (unsigned int i = 0; i < sender->ram->count; i++) {
		int status = scan_region(sender, i, err);

		if (status == 0 && initially_set)
			status = arm_untouched(sender, i, err);
		if (status == 0 && initially_set)
			status = scan_region(sender, i, err);
		if (status < 0)
			return status;
		sender->untouched_pages += sender->pending[i].pages;
	}
	count_pending(sender);
	sender->untouched_pages -= sender->pending_pages;
	return 0;
}

static void put_blocks(struct buffer *out, uint32_t region, uint64_t first, uint64_t end)
{
	buffer_put_u32(out, region);
	buffer_put_u64(out, first);
	buffer_put_u64(out, end - first);
}

int ram_sender_ranges(struct ram_sender *sender, struct error **err)
{
	struct buffer out = {0};
	int status;

	for (unsigned int i = 0; i < sender->ram->count; i++) {
		uint64_t pages = ram_region_pages(&sender->ram->regions[i]);
		uint64_t start = 0, end = 0;
		size_t first, count;

		page_map_for_each_run(&sender->pending[i], first, count)
		{
			uint64_t from = first / BLOCK_PAGES * BLOCK_PAGES;
			uint64_t to = (first + count + BLOCK_PAGES - 1) / BLOCK_PAGES * BLOCK_PAGES;

			if (from > end) {
				if (end > start)
					put_blocks(&out, i, start, end);
				start = from;
			}
			end = to < pages ? to : pages;
		}
		if (end > start)
			put_blocks(&out, i, start, end);
	}
	/* A hint: what does not fit in one message is populated as it arrives. */
	if (out.size > WIRE_MAX_BODY)
		out.size = WIRE_MAX_BODY / 20 * 20;
	status = out.error ? error_set(err, out.error, "out of memory")
			   : wire_send(sender->wire, WIRE_RANGES, 0, out.data, (uint32_t)out.size,
				       NULL, 0, 0, 0, err);
	buffer_free(&out);
	return status;
}

int ram_sender_harvest(struct ram_sender *sender, struct error **err)
{
	int status = sender->ops->log_harvest(sender->opaque, sender->pending);

	if (status == -EOVERFLOW)
		return error_set(
			err, status,
			"the kernel has overrun a dirty ring, so it is not known which "
			"memory was written; run this guest without --dirty-ring to move it");
	if (status < 0)
		return error_set_errno(err, status, "cannot read the dirty log");
	count_pending(sender);
	return 0;
}

static int check_cancelled(const struct ram_sender *sender, struct error **err)
{
	return sender->cancelled && *sender->cancelled ? error_set(err, -ECANCELED, "cancelled")
						       : 0;
}

static int flush_zero(struct ram_sender *sender, struct error **err)
{
	unsigned int count = sender->zero_count;

	if (!count)
		return 0;
	if (check_cancelled(sender, err) < 0)
		return -ECANCELED;
	sender->zero_count = 0;
	bytes_put_u32(sender->zero_body, sender->region);
	bytes_put_u32(sender->zero_body + 4, count);
	return wire_send(sender->wire, WIRE_ZERO, sender->flags, sender->zero_body,
			 RAM_BODY_START + count * RANGE_SIZE, NULL, 0, 0, sender->deadline_us, err);
}

static int flush_pages(struct ram_sender *sender, struct error **err)
{
	uint32_t crcs_at = RAM_BODY_START + sender->range_count * RANGE_SIZE;
	uint32_t pages = sender->page_count;
	unsigned int ranges = sender->range_count;
	int status;

	if (!pages)
		return 0;
	if (check_cancelled(sender, err) < 0)
		return -ECANCELED;
	bytes_put_u32(sender->body, sender->region);
	bytes_put_u32(sender->body + 4, ranges);
	memcpy(sender->body + crcs_at, sender->crcs, pages * 4);
	sender->page_count = sender->range_count = 0;
	status = wire_send(sender->wire, WIRE_RAM, sender->flags, sender->body, crcs_at + pages * 4,
			   sender->iov, ranges, (uint64_t)pages * RAM_PAGE_SIZE,
			   sender->deadline_us, err);
	if (sender->progress && !sender->flags)
		sender->progress(sender->progress_opaque);
	return status;
}

/* Extends the run that ends at `page`, or opens a new one; returns the run's place in `body`. */
static void range_add(uint8_t *body, unsigned int *count, uint64_t page)
{
	uint8_t *place = body + RAM_BODY_START + *count * RANGE_SIZE;

	if (*count) {
		uint8_t *last = place - RANGE_SIZE;
		uint32_t pages = bytes_get_u32(last + 8);

		if (bytes_get_u64(last) + pages == page) {
			bytes_put_u32(last + 8, pages + 1);
			return;
		}
	}
	bytes_put_u64(place, page);
	bytes_put_u32(place + 8, 1);
	bytes_put_u32(place + 12, 0);
	(*count)++;
}

/* Looks at a page once: zero, or its checksum; sends the packet when it is full. */
static int add_page(struct ram_sender *sender, uint8_t *hva, uint64_t page, struct error **err)
{
	unsigned int ranges = sender->range_count;
	struct iovec *iov;

	if (page_is_zero(hva)) {
		sender->zero_pages++;
		range_add(sender->zero_body, &sender->zero_count, page);
		return sender->zero_count == ZERO_RUNS ? flush_zero(sender, err) : 0;
	}
	sender->normal_pages++;
	sender->crcs[sender->page_count++] = pages_crc32c(0, hva, 1);
	range_add(sender->body, &sender->range_count, page);
	iov = &sender->iov[1 + sender->range_count];
	if (sender->range_count > ranges)
		*iov = (struct iovec){hva, RAM_PAGE_SIZE};
	else
		iov->iov_len += RAM_PAGE_SIZE;
	return sender->page_count == PACKET_PAGES ? flush_pages(sender, err) : 0;
}

static int send_region(struct ram_sender *sender, unsigned int index, bool last, struct error **err)
{
	const struct ram_region *region = &sender->ram->regions[index];
	struct page_map *pending = &sender->pending[index];
	uint64_t pages = pending->pages;
	uint64_t armed = 0; /* the log is re-armed for pages below */
	size_t first, count;
	int status = 0;

	sender->region = index;
	page_map_for_each_run(pending, first, count)
	{
		for (uint64_t page = first; page < first + count && status == 0; page++) {
			if (page >= armed && !last) {
				uint64_t start = page / CLEAR_PAGES * CLEAR_PAGES;

				armed = start + CLEAR_PAGES < pages ? start + CLEAR_PAGES : pages;
				status = sender->ops->log_clear(sender->opaque, index, start,
								armed - start, pending->words);
				if (status < 0)
					return error_set_errno(err, status,
							       "cannot re-arm the dirty log");
			}
			status = add_page(sender, region->hva + page * RAM_PAGE_SIZE, page, err);
		}
		if (status < 0)
			return status;
		sender->pending_pages -= count;
	}
	status = flush_pages(sender, err);
	if (status == 0)
		status = flush_zero(sender, err);
	/* Kept until all was sent: after a failure the log is switched off, nothing is trusted. */
	page_map_clear_all(pending);
	return status;
}

int ram_sender_send(struct ram_sender *sender, bool last, uint64_t deadline_us, struct error **err)
{
	int status = 0;

	sender->flags = last ? WIRE_FLAG_LAST : 0;
	sender->deadline_us = deadline_us;
	for (unsigned int i = 0; i < sender->ram->count && status == 0; i++)
		status = send_region(sender, i, last, err);
	return status;
}
