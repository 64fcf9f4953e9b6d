/* SPDX-License-Identifier: Apache-2.0 */
#include "base/page_map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_WORDS 64u

static size_t summary_words(size_t pages)
{
	return BITMAP_WORDS(BITMAP_WORDS(BITMAP_WORDS(pages)));
}

int page_map_init(struct page_map *map, size_t pages)
{
	size_t words = BITMAP_WORDS(pages), summary = summary_words(pages);

	*map = (struct page_map){.pages = pages};
	map->words = malloc(words * sizeof(uint64_t));
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
	map->count += (size_t)__builtin_popcountll(fresh);
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
		uint64_t bits = from[i];

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
			map->count += (size_t)__builtin_popcountll(map->words[w]);
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

size_t page_map_next_run(const struct page_map *map, size_t from, size_t *first)
{
	size_t word = from / 64, words = BITMAP_WORDS(map->pages), start;
	uint64_t value;

	if (from >= map->pages)
		return 0;
	value = map->words[word] & UINT64_MAX << from % 64;
	if (!value) {
		word = next_word(map, word + 1, words);
		if (word >= words)
			return 0;
		value = map->words[word];
	}
	start = word * 64 + (size_t)__builtin_ctzll(value);
	*first = start;
	/* The run's end: the first 0 above its start. Most runs end in the word they begin in. */
	value = ~map->words[word] & UINT64_MAX << start % 64;
	while (!value) {
		if (++word == words)
			return map->pages - start;
		value = ~map->words[word];
	}
	word = word * 64 + (size_t)__builtin_ctzll(value);
	return (word < map->pages ? word : map->pages) - start;
}
