/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bitmaps of 64-bit words, one bit a 4 KiB page, as KVM_GET_DIRTY_LOG writes them. Sizes are in
 * bits; a bitmap of n bits has BITMAP_WORDS(n) words and the bits past n are zero. Runs are found
 * by whole words: a clean or fully set word costs one test.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BITMAP_WORDS(bits) (((bits) + 63) / 64)

static inline bool bitmap_test(const uint64_t *map, size_t bit)
{
	return map[bit / 64] >> (bit % 64) & 1;
}

static inline void bitmap_set(uint64_t *map, size_t bit)
{
	map[bit / 64] |= UINT64_C(1) << (bit % 64);
}

/* How many bits of a word are set; without the instruction the library's way is far slower. */
static inline unsigned int bitmap_word_count(uint64_t word)
{
#if defined(__POPCNT__) || !defined(__x86_64__)
	return (unsigned int)__builtin_popcountll(word);
#else
	word -= word >> 1 & UINT64_C(0x5555555555555555);
	word = (word & UINT64_C(0x3333333333333333)) + (word >> 2 & UINT64_C(0x3333333333333333));
	word = (word + (word >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
	return (unsigned int)(word * UINT64_C(0x0101010101010101) >> 56);
#endif
}

/* Set or clear `count` bits from `first`; not atomic. */
void bitmap_set_range(uint64_t *map, size_t first, size_t count);
void bitmap_clear_range(uint64_t *map, size_t first, size_t count);

/* The same with a relaxed atomic OR per word, for maps that several threads set. */
void bitmap_set_range_atomic(_Atomic(uint64_t) *map, size_t first, size_t count);

/* Copies `count` bits from bit `from` of `map` to bit 0 of `to`; the bits past them in its last
 * word are 0. */
void bitmap_extract(uint64_t *to, const uint64_t *map, size_t from, size_t count);

/* Moves the bits [0, count) up by less than 64; there is room, and the bits below become 0. */
void bitmap_shift_up(uint64_t *map, unsigned int by, size_t count);

size_t bitmap_count(const uint64_t *map, size_t bits);

/*
 * Finds the next run of set bits at or after `from` in a map of `bits` bits. Returns its length
 * and stores its first bit in *first; returns 0 when there is none.
 */
size_t bitmap_next_run(const uint64_t *map, size_t bits, size_t from, size_t *first);

#define bitmap_for_each_run(map, bits, first, count)                                               \
	for ((first) = 0; ((count) = bitmap_next_run((map), (bits), (first), &(first))) != 0;      \
	     (first) += (count))
