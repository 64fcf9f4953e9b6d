/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The destination's side of guest memory: populates what is announced ahead of the stream, reads
 * pages straight into place, and knows which pages arrived with a wrong checksum (the guest wrote
 * to them under way) until an intact copy follows.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "base/buffer.h"
#include "memory/populate.h"
#include "memory/ram.h"
#include "migration/wire.h"

struct ram_receiver {
	struct ram *ram;
	struct wire *wire;
	uint64_t *received[RAM_MAX_REGIONS]; /* pages that hold data */
	uint64_t *suspect[RAM_MAX_REGIONS];
	uint64_t suspect_pages;
	uint64_t pages, zero_pages; /* in all */
	struct populate *populate;
	struct iovec *iov;
};

int ram_receiver_init(struct ram_receiver *receiver, struct ram *ram, struct wire *wire,
		      struct error **err);
void ram_receiver_free(struct ram_receiver *receiver);

/* RANGES: starts to populate. Once. */
int ram_receiver_ranges(struct ram_receiver *receiver, struct reader *body, struct error **err);
/* True when there is nothing (more) to populate. */
bool ram_receiver_populated(const struct ram_receiver *receiver);
/* Ends populating, finished or not; afterwards no thread of it is left. */
int ram_receiver_quiet(struct ram_receiver *receiver, struct error **err);

/* RAM: body, then the payload from the channel into guest memory. [window] */
int ram_receiver_pages(struct ram_receiver *receiver, const struct wire_header *header,
		       struct reader *body, uint64_t deadline_us, struct error **err);
/* ZERO. [window] */
int ram_receiver_zero(struct ram_receiver *receiver, struct reader *body, struct error **err);
