/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A destination engine with a fake machine under any stream. The first byte chooses:
 *
 * odd: the rest is sent as it is.
 * even: the rest is a list of messages without what a damaged stream fails on at once: u8 type, u8
 * flags, u16 length, u8 pages, body. Magic, sequence and checksum are made here, and each page of
 * payload is one and the same, whose CRC32C the seeds know. So the checks behind the checksum are
 * reached.
 *
 * Either way the engine ends within its bounds, and runs the guest only in a move that completed.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/bytes.h"
#include "base/log.h"
#include "migration/wire.h"
#include "../unit/replay.h"
#include "../unit/wire_proxy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* More would only be slower. */
#define MAX_STREAM (1u << 20)

static uint8_t stream[MAX_STREAM];

static size_t build(const uint8_t *data, size_t size, size_t *intent_at)
{
	bool ranges = false, early = false;
	uint32_t sequence = 0;
	size_t used = 0;

	*intent_at = SIZE_MAX;
	while (size >= 5) {
		uint8_t type = data[0], pages = data[4], *message = stream + used;
		size_t length = bytes_get_u16(data + 2), payload = (size_t)pages * 4096;

		if (length > size - 5)
			length = size - 5;
		if (used + WIRE_HEADER_SIZE + length + payload > MAX_STREAM)
			break;
		ranges |= type == WIRE_RANGES;
		early |= type == WIRE_STATE_EARLY;
		/* A destination that cannot become ready is not waited for. */
		if (type == WIRE_INTENT && ranges && early && *intent_at == SIZE_MAX)
			*intent_at = used;
		memset(message, 0, WIRE_HEADER_SIZE);
		bytes_put_u32(message, WIRE_MAGIC);
		bytes_put_u16(message + 4, type);
		bytes_put_u16(message + 6, data[1]);
		bytes_put_u32(message + 8, (uint32_t)length);
		bytes_put_u32(message + 12, sequence++);
		bytes_put_u64(message + 16, payload);
		memcpy(message + WIRE_HEADER_SIZE, data + 5, length);
		memset(message + WIRE_HEADER_SIZE + length, 0x5a, payload);
		wire_fix_crc(message, WIRE_HEADER_SIZE + length);
		used += WIRE_HEADER_SIZE + length + payload;
		data += 5 + length;
		size -= 5 + length;
	}
	return used;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct replay_result result;
	size_t intent_at;

	if (!size || size > MAX_STREAM)
		return 0;
	log_set_level(LOG_LEVEL_ERROR - 1);
	if (*data & 1) {
		replay_play(data + 1, size - 1, replay_find_intent(data + 1, size - 1), &result);
	} else {
		size = build(data + 1, size - 1, &intent_at);
		replay_play(stream, size, intent_at, &result);
	}
	if (result.ran != (result.status == MIGRATION_COMPLETED))
		abort();
	if (!result.ran && !*result.error)
		abort();
	return 0;
}
