/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes that a source sent in a whole small move, and a player that feeds such bytes, damaged
 * or not, to a fresh destination engine. No cmocka: the fuzzer uses it too.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "migration/migration.h"

#define RECORDING_MESSAGES 64

struct recording {
	uint8_t *data;
	size_t size;
	struct {
		size_t offset, body, size; /* body: bytes of it; size: header, body and payload */
		unsigned int type;
	} messages[RECORDING_MESSAGES];
	unsigned int count;
};

/* Records a move with `hot` pages written meanwhile (0: every page is sent once). */
void recording_make(struct recording *recording, unsigned int hot);
void recording_free(struct recording *recording);

struct replay_result {
	enum migration_status status;
	char error[512];
	bool ran;
	uint32_t crc; /* of memory and state when it began to run */
	uint64_t us;  /* how long it took */
};

/*
 * Plays the bytes and closes the sending half. Before byte `intent_at` it waits, for a bounded
 * time, until the destination is ready, as a source does.
 */
void replay_play(const uint8_t *data, size_t size, size_t intent_at, struct replay_result *result);

/* Where INTENT begins; size when there is none. Walks the headers, however wrong they are. */
size_t replay_find_intent(const uint8_t *data, size_t size);
