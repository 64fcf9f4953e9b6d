/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The source's side of guest memory: which pages are still to go, and sending them.
 *
 * A page is pending from the moment it is found (touched, or harvested from the dirty log) until it
 * is sent. Just before a stretch of memory is sent the dirty log is re-armed for its pending pages,
 * so a later write to one of them is reported again; nothing else is ever cleared.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "migration/ops.h"
#include "migration/wire.h"

struct ram_sender {
	const struct migration_ops *ops;
	void *opaque;
	struct ram *ram;
	struct wire *wire;
	struct page_map pending[RAM_MAX_REGIONS];
	uint64_t pending_pages;
	uint64_t normal_pages, zero_pages, untouched_pages; /* sent, in all; never touched */
	/* Called out of the window after each packet, to publish progress. May be NULL. */
	void (*progress)(void *opaque);
	void *progress_opaque;
	/* Looked at before each message, since a socket that never blocks never looks. */
	const _Atomic(bool) *cancelled;

	/* The packet being filled. */
	struct iovec *iov;
	uint8_t *body;
	unsigned int iov_count, range_count, page_count, zero_count;
	uint8_t *zero_body;
	uint32_t *crcs;
	unsigned int region;
	uint16_t flags;
	uint64_t deadline_us;
};

int ram_sender_init(struct ram_sender *sender, const struct migration_ops *ops, void *opaque,
		    struct wire *wire, struct error **err);
void ram_sender_free(struct ram_sender *sender);

/* With the dirty log on: finds what was ever touched; that is pending then. */
int ram_sender_scan(struct ram_sender *sender, struct error **err);

/* Sends RANGES: what will arrive, in 2 MiB blocks. */
int ram_sender_ranges(struct ram_sender *sender, struct error **err);

/* Adds the dirty log to what is pending. [window] */
int ram_sender_harvest(struct ram_sender *sender, struct error **err);

/*
 * Sends all that is pending. last: the vCPUs have stopped, nothing is re-armed. [window]
 * deadline_us 0: only the channel's stall limit.
 */
int ram_sender_send(struct ram_sender *sender, bool last, uint64_t deadline_us, struct error **err);
