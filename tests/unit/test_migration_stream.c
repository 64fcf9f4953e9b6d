/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recorded stream, damaged in every way, against a fresh destination: it refuses, soon, without a
 * crash, and never runs a guest that is not the one that was sent.
 */
#include "unit.h"

#include <sys/resource.h>
#include "base/bytes.h"
#include "base/log.h"
#include "migration/wire.h"
#include "replay.h"
#include "wire_proxy.h"

/* A case is a few milliseconds; the bound leaves room for a loaded machine. */
#define CASE_US 5000000

static struct recording recording;
static struct replay_result intact;
static uint8_t *copy;

/* Copied to the heap at its exact size, so that a sanitizer sees a read past its end. */
static void play(size_t size, struct replay_result *result)
{
	replay_play(copy, size, replay_find_intent(recording.data, recording.size), result);
	if (result->us > CASE_US)
		fail_msg("it took %llu us", (unsigned long long)result->us);
	if (!result->ran && result->status != MIGRATION_FAILED)
		fail_msg("status %s", migration_status_name(result->status));
	if (!result->ran && !*result->error)
		fail_msg("it failed without a word");
}

static int setup(void **state)
{
	log_set_level(LOG_LEVEL_ERROR - 1);
	recording_make(&recording, 3);
	copy = malloc(recording.size);
	return copy ? 0 : -1;
}

static int teardown(void **state)
{
	free(copy);
	recording_free(&recording);
	return 0;
}

static void test_intact(void **state)
{
	memcpy(copy, recording.data, recording.size);
	play(recording.size, &intact);
	assert_string_equal(intact.error, "");
	assert_int_equal(intact.status, MIGRATION_COMPLETED);
	assert_true(intact.ran);
}

static bool in_payload(size_t offset)
{
	for (unsigned int i = 0; i < recording.count; i++) {
		size_t at = recording.messages[i].offset;

		if (offset >= at && offset < at + recording.messages[i].size)
			return offset - at >= WIRE_HEADER_SIZE + recording.messages[i].body;
	}
	return false;
}

static void test_truncated(void **state)
{
	struct replay_result result;
	unsigned int cases = 0;

	memcpy(copy, recording.data, recording.size);
	for (size_t size = 0; size < recording.size; size += in_payload(size) ? 499 : 1, cases++) {
		play(size, &result);
		if (result.ran)
			fail_msg("it ran after %zu of %zu bytes", size, recording.size);
	}
	print_message("%u cases\n", cases);
}

static void test_flipped_bits(void **state)
{
	struct replay_result result;
	unsigned int cases = 0, harmless = 0;

	for (size_t at = 0; at < recording.size; at += in_payload(at) ? 241 : 1, cases++) {
		memcpy(copy, recording.data, recording.size);
		copy[at] ^= (uint8_t)(1u << at % 8);
		play(recording.size, &result);
		if (!result.ran)
			continue;
		harmless++;
		/* Only in a page whose intact copy followed. */
		if (!in_payload(at) || result.crc != intact.crc)
			fail_msg("it ran with byte %zu damaged", at);
	}
	assert_true(harmless < cases / 10);
	print_message("%u cases\n", cases);
}

static void huge(size_t offset, unsigned int message, bool wide, uint64_t value)
{
	size_t start = recording.messages[message].offset;
	struct replay_result result;

	memcpy(copy, recording.data, recording.size);
	if (wide)
		bytes_put_u64(copy + offset, value);
	else
		bytes_put_u32(copy + offset, (uint32_t)value);
	wire_fix_crc(copy + start, recording.messages[message].size);
	play(recording.size, &result);
}

/* Each number of each header and body in turn, with a checksum that is right. */
static void test_huge_values(void **state)
{
	struct rusage before, after;
	unsigned int cases = 0;

	getrusage(RUSAGE_SELF, &before);
	for (unsigned int i = 0; i < recording.count; i++) {
		size_t start = recording.messages[i].offset;
		size_t end = start + WIRE_HEADER_SIZE + recording.messages[i].body;
		/* The values of device state may be anything; a few of them do. */
		size_t step = recording.messages[i].body > 240 ? 3 : 1;

		for (size_t at = start + 4; at + 4 <= end; at += step) {
			huge(at, i, false, 0xffffffff);
			huge(at, i, false, 0x80000000);
			cases += 2;
			if (at + 8 > end)
				continue;
			huge(at, i, true, UINT64_MAX);
			huge(at, i, true, UINT64_C(1) << 40);
			cases += 2;
		}
	}
	getrusage(RUSAGE_SELF, &after);
#ifndef __SANITIZE_ADDRESS__
	assert_true(after.ru_maxrss - before.ru_maxrss < 65536); /* KiB */
#endif
	print_message("%u cases\n", cases);
}

/* Each message left out, or sent twice, with the numbers of those that follow made right. */
static void rearrange(unsigned int at, bool twice)
{
	size_t start = recording.messages[at].offset, size = recording.messages[at].size, used = 0;
	uint8_t *all = malloc(2 * recording.size), *kept = copy;
	struct replay_result result;
	uint32_t sequence = 0;

	assert_non_null(all);
	for (unsigned int i = 0; i < recording.count; i++) {
		for (int n = i != at ? 1 : twice ? 2 : 0; n > 0; n--) {
			uint8_t *message = all + used;

			memcpy(message, recording.data + recording.messages[i].offset,
			       recording.messages[i].size);
			bytes_put_u32(message + 12, sequence++);
			wire_fix_crc(message, recording.messages[i].size);
			used += recording.messages[i].size;
		}
	}
	assert_int_equal(used, twice ? recording.size + size : recording.size - size);
	assert_true(start < recording.size);
	replay_play(all, used, replay_find_intent(all, used), &result);
	copy = kept;
	free(all);
	/* A round's end says nothing; memory may come twice only if it is counted. */
	if (result.ran && recording.messages[at].type != WIRE_ROUND_END &&
	    recording.messages[at].type != WIRE_RANGES &&
	    recording.messages[at].type != WIRE_COMMIT)
		fail_msg("it ran with %s %s", wire_type_name(recording.messages[at].type),
			 twice ? "sent twice" : "left out");
	if (result.ran && !twice && recording.messages[at].type != WIRE_ROUND_END)
		fail_msg("it ran without %s", wire_type_name(recording.messages[at].type));
	if (result.ran)
		assert_int_equal(result.crc, intact.crc);
}

static void test_rearranged(void **state)
{
	for (unsigned int i = 0; i < recording.count; i++) {
		rearrange(i, false);
		rearrange(i, true);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_intact),       cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_flipped_bits), cmocka_unit_test(test_huge_values),
		cmocka_unit_test(test_rearranged),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
