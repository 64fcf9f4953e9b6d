/* SPDX-License-Identifier: Apache-2.0 */
#include "memory/dirty_tracker.h"

#include <errno.h>
#include <linux/kvm.h>
#include <stdlib.h>
#include <string.h>
#include "base/bitmap.h"

/* Pages that are cleared by one call where the slot's bits do not lie as the region's do. */
#define CLEAR_PAGES 16384u

int dirty_tracker_init(struct dirty_tracker *tracker, struct ram *ram, struct kvm_dirty *dirty,
		       struct kvm_slots *slots, struct error **err)
{
	int code;

	*tracker = (struct dirty_tracker){.ram = ram, .dirty = dirty, .slots = slots};
	code = pthread_mutex_init(&tracker->lock, NULL);
	if (code != 0) {
		tracker->ram = NULL;
		return error_set_errno(err, -code, "cannot make the dirty tracker's lock");
	}
	return 0;
}

static void forget_areas(struct dirty_tracker *tracker)
{
	free(tracker->areas);
	free(tracker->scratch);
	tracker->areas = NULL;
	tracker->scratch = NULL;
	tracker->area_count = 0;
}

void dirty_tracker_free(struct dirty_tracker *tracker)
{
	if (!tracker->ram)
		return;
	forget_areas(tracker);
	pthread_mutex_destroy(&tracker->lock);
	tracker->ram = NULL;
}

static struct kvm_slot *slot_in_region(const struct dirty_tracker *tracker,
				       const struct ram_region *region, uint64_t gpa)
{
	struct kvm_slot *slot = kvm_slots_next(tracker->slots, gpa);

	return slot && slot->gpa - region->gpa < region->size ? slot : NULL;
}

#define for_each_slot(tracker, region, slot)                                                       \
	for ((slot) = slot_in_region((tracker), (region), (region)->gpa); (slot);                  \
	     (slot) = slot_in_region((tracker), (region), (slot)->gpa + (slot)->size))

static int find_areas(struct dirty_tracker *tracker, struct error **err)
{
	unsigned int most = kvm_slots_count(tracker->slots);
	uint64_t pages = 1;
	struct kvm_slot *slot;

	tracker->areas = calloc(most ? most : 1, sizeof(*tracker->areas));
	if (!tracker->areas)
		return error_set(err, -ENOMEM, "no memory for the dirty log of %u slots", most);
	for (unsigned int i = 0; i < tracker->ram->count; i++) {
		const struct ram_region *region = &tracker->ram->regions[i];

		for_each_slot(tracker, region, slot)
		{
			if ((slot->flags & KVM_MEM_READONLY) || tracker->area_count == most)
				continue;
			tracker->areas[tracker->area_count++] = (struct dirty_area){
				.slot = slot,
				.region = i,
				.first = (slot->gpa - region->gpa) >> RAM_PAGE_SHIFT,
			};
			if (kvm_slot_pages(slot) > pages)
				pages = kvm_slot_pages(slot);
		}
	}
	tracker->scratch = malloc(BITMAP_WORDS(pages) * sizeof(uint64_t));
	if (!tracker->scratch)
		return error_set(err, -ENOMEM, "no memory for the dirty log");
	/* In the window it must be there: no page fault then. */
	memset(tracker->scratch, 0, BITMAP_WORDS(pages) * sizeof(uint64_t));
	return 0;
}

/* Calls `statement` with `region`, `word` and `bits` for each word that the monitor has written to;
 * they are taken. */
#define FOR_EACH_WRITTEN(ram_, statement)                                                          \
	for (unsigned int region = 0; region < (ram_)->count; region++) {                          \
		struct ram_region *at_ = &(ram_)->regions[region];                                 \
		size_t words_ = BITMAP_WORDS(ram_region_pages(at_));                               \
		for (size_t s_ = 0; s_ < BITMAP_WORDS(BITMAP_WORDS(words_)); s_++) {               \
			uint64_t left_ = atomic_load(&at_->written_blocks[s_]);                    \
			if (left_)                                                                 \
				left_ = atomic_exchange(&at_->written_blocks[s_], 0);              \
			for (; left_; left_ &= left_ - 1) {                                        \
				size_t word = (s_ * 64 + (size_t)__builtin_ctzll(left_)) * 64;     \
				size_t end_ = word + 64 < words_ ? word + 64 : words_;             \
				for (; word < end_; word++) {                                      \
					uint64_t bits = atomic_exchange(&at_->written[word], 0);   \
					if (bits)                                                  \
						statement;                                         \
				}                                                                  \
			}                                                                          \
		}                                                                                  \
	}

static void forget_written(struct ram *ram)
{
	FOR_EACH_WRITTEN(ram, (void)bits);
}

static void log_off(struct dirty_tracker *tracker)
{
	for (unsigned int i = 0; i < tracker->area_count; i++)
		(void)kvm_dirty_stop(tracker->dirty, tracker->areas[i].slot, NULL);
	atomic_store(&tracker->ram->logging, false);
	forget_written(tracker->ram);
	forget_areas(tracker);
}

static int log_on(struct dirty_tracker *tracker, struct error **err)
{
	int code = find_areas(tracker, err);

	forget_written(tracker->ram);
	atomic_store(&tracker->ram->logging, true);
	for (unsigned int i = 0; code == 0 && i < tracker->area_count; i++)
		code = kvm_dirty_start(tracker->dirty, tracker->areas[i].slot, err);
	if (code < 0)
		log_off(tracker);
	return code;
}

struct fan_out {
	struct dirty_tracker *tracker;
	const struct dirty_subscriber *taker; /* gets it into `maps`; the others into their inbox */
	struct page_map *maps;
	const struct dirty_area *area;
};

static void give(const struct fan_out *out, unsigned int region, uint64_t first,
		 const uint64_t *words, uint64_t pages)
{
	for (unsigned int i = 0; i < out->tracker->subscriber_count; i++) {
		struct dirty_subscriber *subscriber = out->tracker->subscribers[i];
		struct page_map *maps = subscriber == out->taker ? out->maps : subscriber->inbox;

		if (maps)
			page_map_merge(&maps[region], first, words, pages);
	}
}

static void take_words(void *opaque, size_t first, const uint64_t *words, size_t count)
{
	const struct fan_out *out = opaque;
	uint64_t left = kvm_slot_pages(out->area->slot) - first * 64;

	give(out, out->area->region, out->area->first + first * 64, words,
	     count * 64 < left ? count * 64 : left);
}

static int harvest_all(struct fan_out *out, bool stopped)
{
	struct dirty_tracker *tracker = out->tracker;
	int code = kvm_dirty_sync(tracker->dirty, stopped);

	for (unsigned int i = 0; code == 0 && i < tracker->area_count; i++) {
		out->area = &tracker->areas[i];
		code = kvm_dirty_harvest(tracker->dirty, out->area->slot, tracker->scratch,
					 take_words, out);
	}
	FOR_EACH_WRITTEN(tracker->ram, give(out, region, word * 64, &bits, 64));
	return code;
}

static int make_inbox(struct dirty_tracker *tracker, struct dirty_subscriber *subscriber,
		      struct error **err)
{
	*subscriber = (struct dirty_subscriber){0};
	for (unsigned int i = 0; i < tracker->ram->count; i++)
		if (page_map_init(&subscriber->inbox[i],
				  ram_region_pages(&tracker->ram->regions[i])) < 0)
			return error_set(err, -ENOMEM, "no memory for a bitmap of written pages");
	return 0;
}

static void free_inbox(struct dirty_subscriber *subscriber)
{
	for (unsigned int i = 0; i < RAM_MAX_REGIONS; i++)
		page_map_free(&subscriber->inbox[i]);
}

int dirty_tracker_subscribe(struct dirty_tracker *tracker, struct dirty_subscriber *subscriber,
			    struct error **err)
{
	int code = make_inbox(tracker, subscriber, err);

	if (code < 0) {
		free_inbox(subscriber);
		return code;
	}
	pthread_mutex_lock(&tracker->lock);
	if (tracker->subscriber_count == DIRTY_SUBSCRIBERS)
		code = error_set(err, -EBUSY, "guest memory is watched by %u others already",
				 DIRTY_SUBSCRIBERS);
	else if (tracker->subscriber_count == 0)
		code = log_on(tracker, err);
	if (code == 0) {
		subscriber->all_set =
			tracker->subscriber_count == 0 && tracker->dirty->initially_set;
		subscriber->active = true;
		tracker->subscribers[tracker->subscriber_count++] = subscriber;
	}
	pthread_mutex_unlock(&tracker->lock);
	if (code < 0)
		free_inbox(subscriber);
	return code;
}

void dirty_tracker_unsubscribe(struct dirty_tracker *tracker, struct dirty_subscriber *subscriber)
{
	if (!subscriber->active)
		return;
	pthread_mutex_lock(&tracker->lock);
	for (unsigned int i = 0; i < tracker->subscriber_count; i++)
		if (tracker->subscribers[i] == subscriber)
			tracker->subscribers[i] = tracker->subscribers[--tracker->subscriber_count];
	if (tracker->subscriber_count == 0)
		log_off(tracker);
	pthread_mutex_unlock(&tracker->lock);
	subscriber->active = false;
	free_inbox(subscriber);
}

int dirty_tracker_harvest(struct dirty_tracker *tracker, struct dirty_subscriber *subscriber,
			  struct page_map *maps, bool stopped)
{
	struct fan_out out = {.tracker = tracker, .taker = subscriber, .maps = maps};
	int code;

	pthread_mutex_lock(&tracker->lock);
	code = harvest_all(&out, stopped);
	for (unsigned int i = 0; i < tracker->ram->count; i++) {
		if (!subscriber->inbox[i].count)
			continue;
		page_map_merge_map(&maps[i], &subscriber->inbox[i]);
		page_map_clear_all(&subscriber->inbox[i]);
	}
	pthread_mutex_unlock(&tracker->lock);
	return code;
}

/* Pages [from, to) of the slot, whose page 0 is page `base` of the region (it may be negative). */
static int clear_slot(struct dirty_tracker *tracker, struct kvm_slot *slot, uint64_t base,
		      uint64_t from, uint64_t to, const uint64_t *seen)
{
	uint64_t pages = kvm_slot_pages(slot), stretch[CLEAR_PAGES / 64];
	uint64_t end = to == pages ? pages : (to + 63) / 64 * 64;
	int code = 0;

	if (end > pages)
		end = pages;
	if (base % 64 == 0 && from % 64 == 0 && (to == pages || to % 64 == 0))
		return kvm_dirty_clear(tracker->dirty, slot, from, to - from,
				       seen + (base + from) / 64);
	/* KVM takes whole words; of the first and the last one only the bits that are meant. */
	for (uint64_t at = from / 64 * 64; code == 0 && at < end; at += CLEAR_PAGES) {
		uint64_t count = end - at < CLEAR_PAGES ? end - at : CLEAR_PAGES;
		uint64_t first = at < from ? from : at;
		uint64_t last = at + count < to ? at + count : to;

		bitmap_extract(stretch, seen, base + first, last - first);
		if (first > at)
			bitmap_shift_up(stretch, (unsigned int)(first - at), last - first);
		memset(&stretch[BITMAP_WORDS(last - at)], 0,
		       (BITMAP_WORDS(count) - BITMAP_WORDS(last - at)) * sizeof(*stretch));
		code = kvm_dirty_clear(tracker->dirty, slot, at, count, stretch);
	}
	return code;
}

/* Under the lock: what is cleared here is new to the others. */
static void tell_others(struct dirty_tracker *tracker, const struct dirty_subscriber *subscriber,
			unsigned int region, uint64_t first, uint64_t count, const uint64_t *seen)
{
	struct fan_out out = {.tracker = tracker, .taker = subscriber};

	if (tracker->subscriber_count < 2)
		return;
	for (uint64_t page = first; page < first + count;) {
		uint64_t bits, length = 64;

		if (length > first + count - page)
			length = first + count - page;
		bitmap_extract(&bits, seen, page, length);
		if (bits)
			give(&out, region, page, &bits, length);
		page += length;
	}
}

int dirty_tracker_clear(struct dirty_tracker *tracker, struct dirty_subscriber *subscriber,
			unsigned int index, uint64_t first, uint64_t count, const uint64_t *seen)
{
	const struct ram_region *region = &tracker->ram->regions[index];
	uint64_t pages = ram_region_pages(region);
	struct kvm_slot *slot;
	int code = 0;

	if (first > pages || count > pages - first)
		return -EINVAL;
	if (!tracker->dirty->manual || count == 0)
		return 0;
	pthread_mutex_lock(&tracker->lock);
	slot = kvm_slots_find(tracker->slots, region->gpa + (first << RAM_PAGE_SHIFT));
	if (!slot)
		slot = slot_in_region(tracker, region, region->gpa + (first << RAM_PAGE_SHIFT));
	while (code == 0 && slot && tracker->area_count) {
		uint64_t base = (slot->gpa - region->gpa) >> RAM_PAGE_SHIFT;
		uint64_t from = first > base ? first - base : 0, to = first + count - base;

		if (base >= first + count)
			break;
		if (to > kvm_slot_pages(slot))
			to = kvm_slot_pages(slot);
		if (!(slot->flags & KVM_MEM_READONLY) && from < to)
			code = clear_slot(tracker, slot, base, from, to, seen);
		slot = slot_in_region(tracker, region, slot->gpa + slot->size);
	}
	tell_others(tracker, subscriber, index, first, count, seen);
	pthread_mutex_unlock(&tracker->lock);
	return code;
}
