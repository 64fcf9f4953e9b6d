/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The migration stream's messages (docs/migration-stream.md has them byte by byte).
 *
 * A message is a 32-byte header, a body of `length` bytes and, for RAM only, `payload` bytes of
 * page contents. All numbers are little-endian. The header's CRC32C covers the header (with the CRC
 * field zero) and the body; each page of a payload has a CRC32C of its own in the body, since a
 * page may legitimately change under the sender while the guest runs.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "migration/channel.h"

#define WIRE_MAGIC       0x54574447u /* "GDWT" */
#define WIRE_VERSION     1u
#define WIRE_HEADER_SIZE 32u

/* Bounds that a receiver enforces before it reads or allocates anything. */
#define WIRE_MAX_BODY         (4u << 20)
#define WIRE_PACKET_MAX_PAGES 256u /* pages of payload in one RAM message */
#define WIRE_MAX_REASON       400u

enum wire_type {
	/* source -> destination */
	WIRE_HELLO = 1,
	WIRE_MACHINE,
	WIRE_SCHEMA,
	WIRE_RANGES,
	WIRE_STATE_EARLY,
	WIRE_RAM,
	WIRE_ZERO,
	WIRE_ROUND_END,
	WIRE_INTENT,
	WIRE_STATE_DELTA,
	WIRE_PREPARE,
	WIRE_COMMIT,
	WIRE_ABORT,
	WIRE_KEEPALIVE, /* both ways: still here, still working */

	/* destination -> source */
	WIRE_HELLO_OK = 64,
	WIRE_MACHINE_OK,
	WIRE_SCHEMA_OK,
	WIRE_READY,
	WIRE_QUIET,
	WIRE_VOTE_YES,
	WIRE_RUNNING,
	WIRE_REFUSE, /* with a reason; before the vote, as the vote, or after COMMIT (did not take)
		      */
	WIRE_ROUND_DONE, /* answers ROUND_END: all of the round has arrived */
};

/* Header flags. */
#define WIRE_FLAG_LAST  1u /* RAM, ZERO: the vCPUs have stopped; a wrong checksum is a fault */
#define WIRE_FLAG_CHECK 2u /* HELLO: a pre-check; nothing follows MACHINE */

/* Features: the intersection rules; a required one that is unknown is refused. */
#define WIRE_FEATURE_OWNER_RECORD 1u
#define WIRE_FEATURES             (WIRE_FEATURE_OWNER_RECORD)

struct wire_header {
	uint16_t type, flags;
	uint32_t length;   /* bytes of body */
	uint64_t payload;  /* bytes after the body */
	uint32_t sequence; /* counts the messages of one direction, from 0 */
	uint32_t crc;
};

const char *wire_type_name(unsigned int type);

/* One direction-pair of a stream: a channel and the two sequence counters. */
struct wire {
	struct channel *channel;
	uint32_t send_sequence, receive_sequence;
	bool torn; /* a message was sent in part: whatever follows would be taken for its rest */
};

/*
 * Sends one message; payload iovecs follow the body. Does not allocate. [window]
 * iov has room for two entries in front: iov[0] and iov[1] are filled here; payload starts at
 * iov[2] and has `payload_count` entries. iov may be NULL when there is no payload.
 */
int wire_send(struct wire *wire, enum wire_type type, uint16_t flags, const void *body,
	      uint32_t length, struct iovec *iov, unsigned int payload_count, uint64_t payload,
	      uint64_t deadline_us, struct error **err);

/*
 * Receives the next header and its body (into `body`, of `capacity` bytes); the payload is left in
 * the channel for the caller. Checks magic, sequence, bounds and CRC. [window]
 */
int wire_receive(struct wire *wire, struct wire_header *header, void *body, uint32_t capacity,
		 uint64_t deadline_us, struct error **err);
