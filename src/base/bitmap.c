/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bitmap.h"

#include <stdatomic.h>

/* The bits [from, to) of a word; 0 <= from < to <= 64. */
static uint64_t word_mask(unsigned int from, unsigned int to)
{
	return UINT64_MAX << from & UINT64_MAX >> (64 - to);
}

/* Walks [first, first + count) by words: `statement` sees `word` (an index) and `mask`. */
#define FOR_EACH_WORD(first, count, statement)                                                     \
	do {                                                                                       \
		size_t at_ = (first), end_ = at_ + (count);                                        \
		while (at_ < end_) {                                                               \
			size_t word = at_ / 64, left_ = end_ - word * 64;                          \
			uint64_t mask =                                                            \
				word_mask(at_ % 64, left_ < 64 ? (unsigned int)left_ : 64);        \
			statement;                                                                 \
			at_ = (word + 1) * 64;                                                     \
		}                                                                                  \
	} while (0)

void bitmap_set_range(uint64_t *map, size_t first, size_t count)
{
	FOR_EACH_WORD(first, count, map[word] |= mask);
}

void bitmap_clear_range(uint64_t *map, size_t first, size_t count)
{
	FOR_EACH_WORD(first, count, map[word] &= ~mask);
}

void bitmap_set_range_atomic(_Atomic(uint64_t) *map, size_t first, size_t count)
{
	FOR_EACH_WORD(first, count,
		      atomic_fetch_or_explicit(&map[word], mask, memory_order_relaxed));
}

void bitmap_extract(uint64_t *to, const uint64_t *map, size_t from, size_t count)
{
	unsigned int shift = from % 64;
	size_t words = BITMAP_WORDS(count), last = count ? (from + count - 1) / 64 : 0;

	map += from / 64;
	last -= from / 64;
	for (size_t i = 0; i < words; i++) {
		to[i] = map[i] >> shift;
		if (shift && i < last)
			to[i] |= map[i + 1] << (64 - shift);
	}
	if (count % 64)
		to[words - 1] &= word_mask(0, count % 64);
}

void bitmap_shift_up(uint64_t *map, unsigned int by, size_t count)
{
	size_t words = BITMAP_WORDS(count), total = BITMAP_WORDS(count + by);

	if (by == 0 || count == 0)
		return;
	for (size_t i = total; i-- > 0;) {
		uint64_t value = i < words ? map[i] << by : 0;

		if (i > 0)
			value |= map[i - 1] >> (64 - by);
		map[i] = value;
	}
}

size_t bitmap_count(const uint64_t *map, size_t bits)
{
	size_t words = bits / 64, sum = 0;

	for (size_t i = 0; i < words; i++)
		sum += bitmap_word_count(map[i]);
	if (bits % 64)
		sum += bitmap_word_count(map[words] & word_mask(0, bits % 64));
	return sum;
}

/* The first bit at or after `from` whose value differs from `skip`'s (0 or all ones), or bits. */
static size_t bitmap_next(const uint64_t *map, size_t bits, size_t from, uint64_t skip)
{
	size_t word = from / 64, words = BITMAP_WORDS(bits), found;
	uint64_t value;

	if (from >= bits)
		return bits;
	value = (map[word] ^ skip) & UINT64_MAX << (from % 64);
	while (!value) {
		if (++word == words)
			return bits;
		value = map[word] ^ skip;
	}
	found = word * 64 + (size_t)__builtin_ctzll(value);
	return found < bits ? found : bits;
}

size_t bitmap_next_run(const uint64_t *map, size_t bits, size_t from, size_t *first)
{
	size_t start = bitmap_next(map, bits, from, 0);

	if (start == bits)
		return 0;
	*first = start;
	return bitmap_next(map, bits, start, UINT64_MAX) - start;
}
