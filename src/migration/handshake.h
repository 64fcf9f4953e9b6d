/* SPDX-License-Identifier: Apache-2.0 */
/* The bodies of the messages that are not memory or state, both ways; docs/migration-stream.md. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "base/buffer.h"
#include "base/description.h"
#include "migration/engine.h"

/* Values of MACHINE that are newer than version 1 carry their `since` in the state tables. */
#define MACHINE_VERSION 1u

struct hello {
	uint16_t version, version_min;
	uint32_t features, required;
	uint8_t nonce[ENGINE_NONCE_SIZE];
};

struct machine_offer {
	uint32_t machine_version;
	char owner_path[256]; /* "": no record */
	bool owner_durable;
	uint8_t owner[16];
	uint64_t epoch;
	uint32_t switchover_timeout_ms;
	struct description description;
};

struct prepare {
	uint8_t nonce[ENGINE_NONCE_SIZE];
	uint64_t epoch;
	bool running;               /* false: the guest is paused and stays so */
	uint64_t pages, zero_pages; /* sent in all */
};

void hello_encode(const struct hello *hello, struct buffer *out);
int hello_decode(struct hello *hello, struct reader *in, struct error **err);

void machine_offer_encode(const struct machine_offer *offer, struct buffer *out);
/* On success the description is the caller's to free. */
int machine_offer_decode(struct machine_offer *offer, struct reader *in, struct error **err);

#define PREPARE_SIZE (ENGINE_NONCE_SIZE + 8 + 1 + 16)
void prepare_encode(const struct prepare *prepare, uint8_t raw[PREPARE_SIZE]); /* [window] */
int prepare_decode(struct prepare *prepare, struct reader *in, struct error **err);

/* COMMIT, INTENT, QUIET, VOTE-YES, RUNNING: the nonce, and a number where the message has one. */
#define TOKEN_SIZE (ENGINE_NONCE_SIZE + 8)
void token_encode(uint8_t raw[TOKEN_SIZE], const uint8_t *nonce, uint64_t number); /* [window] */
int token_decode(struct migration *m, const struct wire_header *header, const uint8_t *nonce,
		 uint64_t *number, struct error **err);

/*
 * RUNNING's number: in the low half how long the guest waited for this side after COMMIT, in the
 * high half how much later RUNNING is sent; microseconds, each at most 2^32 - 1.
 */
static inline uint64_t running_number(uint64_t resume_us, uint64_t late_us)
{
	return (resume_us < UINT32_MAX ? resume_us : UINT32_MAX) |
	       (late_us < UINT32_MAX ? late_us : UINT32_MAX) << 32;
}
