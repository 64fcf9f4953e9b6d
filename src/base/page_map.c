/* SPDX-License-Identifier: Apache-2.0 */
#include "base/page_map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BLOCK_WORDS 64u
#define HUGE_PAGE   ((size_t)2 << 20)

static size_t summary_words(size_t pages)
{
	return BITMAP_WORDS(BITMAP_WORDS(BITMAP_WORDS(pages)));
}

/* A large map is walked from end to end: huge pages spare it the misses. */
static void *allocate(size_t size)
{
	void *memory;

	if (size < HUGE_PAGE)
		return malloc(size);
	size = (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
	memory = aligned_alloc(HUGE_PAGE, size);
	if (memory)
		(void)madvise(memory, size, MADV_HUGEPAGE);
	return memory;
}

int page_map_init(struct page_map *map, size_t pages)
{
	size_t words = BITMAP_WORDS(pages), summary = summary_words(pages);

	*map = (struct page_map){.pages = pages};
	map->words = allocate(words * sizeof(uint64_t));
	map->summary = malloc(summary * sizeof(uint64_t));
	if (!map->words || !map->summary) {
		page_map_free(map);
		return -ENOMEM;
	}
	memset(map->words, 0, words * sizeof(uint64_t));
	memset(map->summary, 0, summary * sizeof(uint64_t));
	return 0;
}

void page_map_free(struct page_map *map)
{
	free(map->words);
	free(map->summary);
	*map = (struct page_map){0};
}

static void add(struct page_map *map, size_t word, uint64_t bits)
{
	uint64_t fresh = bits & ~map->words[word];

	if (!fresh)
		return;
	map->words[word] |= fresh;
	map->count += bitmap_word_count(fresh);
	map->summary[word / BLOCK_WORDS / 64] |= UINT64_C(1) << word / BLOCK_WORDS % 64;
}

void page_map_merge(struct page_map *map, size_t first, const uint64_t *from, size_t pages)
{
	unsigned int shift = first % 64;
	size_t at = first / 64, words;

	if (first >= map->pages)
		return;
	if (pages > map->pages - first)
		pages = map->pages - first;
	words = BITMAP_WORDS(pages);
	for (size_t i = 0; i < words; i++) {
		uint64_t bits;

		while (i + 8 <= words && !(from[i] | from[i + 1] | from[i + 2] | from[i + 3] |
					   from[i + 4] | from[i + 5] | from[i + 6] | from[i + 7]))
			i += 8;
		bits = i < words ? from[i] : 0;
		if (!bits)
			continue;
		if (i == words - 1 && pages % 64)
			bits &= (UINT64_C(1) << pages % 64) - 1;
		add(map, at + i, bits << shift);
		if (shift && bits >> (64 - shift))
			add(map, at + i + 1, bits >> (64 - shift));
	}
}

size_t page_map_next_block(const struct page_map *map, size_t from, size_t *first)
{
	size_t words = BITMAP_WORDS(map->pages), block = (from + BLOCK_WORDS - 1) / BLOCK_WORDS;

	while (block * BLOCK_WORDS < words) {
		uint64_t blocks = map->summary[block / 64] >> block % 64;

		if (blocks) {
			block += (size_t)__builtin_ctzll(blocks);
			*first = block * BLOCK_WORDS;
			return words - *first < BLOCK_WORDS ? words - *first : BLOCK_WORDS;
		}
		block = (block / 64 + 1) * 64;
	}
	return 0;
}

void page_map_merge_map(struct page_map *map, const struct page_map *from)
{
	size_t first, count;

	page_map_for_each_block(from, first, count)
		page_map_merge(map, first * 64, &from->words[first], count * 64);
}

void page_map_clear_all(struct page_map *map)
{
	size_t first, count;

	page_map_for_each_block(map, first, count)
		memset(&map->words[first], 0, count * sizeof(uint64_t));
	memset(map->summary, 0, summary_words(map->pages) * sizeof(uint64_t));
	map->count = 0;
}

void page_map_refresh(struct page_map *map)
{
	size_t words = BITMAP_WORDS(map->pages);

	memset(map->summary, 0, summary_words(map->pages) * sizeof(uint64_t));
	map->count = 0;
	for (size_t w = 0; w < words; w++)
		if (map->words[w]) {
			map->count += bitmap_word_count(map->words[w]);
			map->summary[w / BLOCK_WORDS / 64] |= UINT64_C(1) << w / BLOCK_WORDS % 64;
		}
}

/* The first word at or after `word` that is not 0, or `words`; empty blocks are passed over. */
static size_t next_word(const struct page_map *map, size_t word, size_t words)
{
	while (word < words) {
		size_t block = word / BLOCK_WORDS, end;
		uint64_t blocks = map->summary[block / 64] >> block % 64;

		if (!blocks) {
			word = (block / 64 + 1) * 64 * BLOCK_WORDS;
			continue;
		}
		if (!(blocks & 1)) {
			word = (block + (size_t)__builtin_ctzll(blocks)) * BLOCK_WORDS;
			continue;
		}
		end = (block + 1) * BLOCK_WORDS < words ? (block + 1) * BLOCK_WORDS : words;
		while (word < end && !map->words[word])
			word++;
		if (word < end)
			return word;
	}
	return words;
}

bool page_map_cursor_skip(struct page_map_cursor *cursor)
{
	size_t words = BITMAP_WORDS(cursor->map->pages);

	cursor->word = next_word(cursor->map, cursor->word + 1, words);
	if (cursor->word >= words)
		return false;
	cursor->bits = cursor->map->words[cursor->word];
	return true;
}

/* How far the run goes on from the next word's start. Words that are full are tested eight at once.
 */
size_t page_map_cursor_extend(struct page_map_cursor *cursor)
{
	const uint64_t *words = cursor->map->words;
	size_t end = BITMAP_WORDS(cursor->map->pages), word = cursor->word + 1, from = word;
	unsigned int more = 0;

	while (word + 8 <= end && (words[word] & words[word + 1] & words[word + 2] &
				   words[word + 3] & words[word + 4] & words[word + 5] &
				   words[word + 6] & words[word + 7]) == UINT64_MAX)
		word += 8;
	while (word < end && words[word] == UINT64_MAX)
		word++;
	cursor->word = word;
	cursor->bits = 0;
	if (word < end && words[word] & 1) {
		more = (unsigned int)__builtin_ctzll(~words[word]);
		cursor->bits = words[word] & UINT64_MAX << more;
	} else if (word < end) {
		cursor->bits = words[word];
	}
	return (word - from) * 64 + more;
}

size_t page_map_next_run(const struct page_map *map, size_t from, size_t *first)
{
	struct page_map_cursor cursor = {.map = map, .word = from / 64};
	size_t length;

	if (from >= map->pages)
		return 0;
	cursor.bits = map->words[from / 64] & UINT64_MAX << from % 64;
	return page_map_cursor_next(&cursor, first, &length) ? length : 0;
}
