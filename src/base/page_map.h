/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bitmap of pages that knows where it is empty: a summary has one bit for 64 words (4096 pages,
 * 16 MiB), so that walking and clearing cost what is set, not what could be. Not atomic: one owner.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/bitmap.h"

struct page_map {
	uint64_t *words;   /* bits past the last page are 0 */
	uint64_t *summary; /* bit i: one of words [64 i, 64 i + 64) may not be 0 */
	size_t pages;
	size_t count; /* pages set */
};

/* Empty, and with all its memory there: filling it faults nothing in. -ENOMEM. */
int page_map_init(struct page_map *map, size_t pages);
void page_map_free(struct page_map *map);

/* Adds the `pages` bits at `from`, bit 0 being page `first`: any alignment, whole words at a time.
 * Pages past the map's end are ignored. */
void page_map_merge(struct page_map *map, size_t first, const uint64_t *from, size_t pages);
void page_map_merge_map(struct page_map *map, const struct page_map *from);

static inline void page_map_set(struct page_map *map, size_t page)
{
	uint64_t bit = UINT64_C(1) << page % 64, *word = &map->words[page / 64];

	map->count += !(*word & bit);
	*word |= bit;
	map->summary[page / 4096 / 64] |= UINT64_C(1) << page / 4096 % 64;
}

void page_map_clear_all(struct page_map *map);

/* After `words` were written directly: makes summary and count true again. */
void page_map_refresh(struct page_map *map);

/* As bitmap_next_run(): the length of the next run at or after `from`, or 0. */
size_t page_map_next_run(const struct page_map *map, size_t from, size_t *first);

/* Walks the runs; the rest of the word it is in stays in a register, so that a run costs a few
 * instructions. Pages at or past the place it has reached may change meanwhile, and may then be
 * missed. */
struct page_map_cursor {
	const struct page_map *map;
	size_t word;
	uint64_t bits; /* of that word: not walked yet */
};

static inline struct page_map_cursor page_map_begin(const struct page_map *map)
{
	return (struct page_map_cursor){.map = map, .bits = map->pages ? map->words[0] : 0};
}

/* The parts that are not done in one word: the next word that is not 0 (false: none), and a run
 * that reaches the end of its word. */
bool page_map_cursor_skip(struct page_map_cursor *cursor);
size_t page_map_cursor_extend(struct page_map_cursor *cursor);

static inline bool page_map_cursor_next(struct page_map_cursor *cursor, size_t *first,
					size_t *length)
{
	uint64_t rest;
	int start;

	if (!cursor->bits && !page_map_cursor_skip(cursor))
		return false;
	start = __builtin_ctzll(cursor->bits);
	*first = cursor->word * 64 + (size_t)start;
	rest = ~(cursor->bits >> start);
	/* Adding the lowest bit carries through the run and takes it away. */
	cursor->bits &= cursor->bits + (UINT64_C(1) << start);
	*length = rest ? (size_t)__builtin_ctzll(rest) : 64;
	if (start + (int)*length == 64)
		*length += page_map_cursor_extend(cursor);
	return true;
}

#define page_map_for_each_run(map, first, length)                                                  \
	for (struct page_map_cursor cursor_ = page_map_begin(map);                                 \
	     page_map_cursor_next(&cursor_, &(first), &(length));)

/* The next block of words (64 at most) at or after word `from` in which a page may be set: how
 * many, or 0. */
size_t page_map_next_block(const struct page_map *map, size_t from, size_t *first);

#define page_map_for_each_block(map, first, length)                                                \
	for ((first) = 0; ((length) = page_map_next_block((map), (first), &(first))) != 0;         \
	     (first) += (length))
