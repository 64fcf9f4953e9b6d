/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner record: a small file a guest that says who may run it (ARCHITECTURE.md, "Who owns the
 * guest"). Who runs the guest holds an OFD lock on it and the matching epoch. Both sides of a move
 * open it by descriptions of their own, before the window; taking and giving it is one fcntl and
 * one pwrite.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"

struct owner_record {
	int fd;         /* -1: no record */
	uint64_t epoch; /* the one this side knows */
	bool locked;    /* this side holds the lock */
	bool durable; /* fdatasync after each write: the record lies on storage that hosts share */
	char path[256];
	uint8_t self[16]; /* this process's random identity */
};

/* Makes (or takes over, if nobody holds it) the record at path, locked, at a new epoch. -EBUSY:
 * another process runs this guest. */
int owner_create(struct owner_record *record, const char *path, bool durable, struct error **err);

/*
 * Destination: opens the record the source named, without locking. -ESTALE when it does not say
 * that `owner` (the source's identity) holds `epoch`: another file, then, as on another host. -EBUSY
 * when, besides, somebody holds it: the guest runs here already, and not as the source believes.
 */
int owner_open(struct owner_record *record, const char *path, bool durable, const uint8_t owner[16],
	       uint64_t epoch, struct error **err);

/* [window] Frees the lock; the record still says that this side owned the epoch. */
void owner_unlock(struct owner_record *record);

/* [window] Tries to lock: 0 with the epoch written in the file in *found, or -EAGAIN: somebody
 * holds the lock. */
int owner_lock(struct owner_record *record, uint64_t *found);

/* Without a lock: another side has written the epoch after `epoch`. */
bool owner_taken_by_other(const struct owner_record *record, uint64_t epoch);

/* [window] Under the lock: writes epoch + 1, which fences every stale claimant. */
int owner_advance(struct owner_record *record);

/* Closes; removes the file when this side holds the lock. */
void owner_close(struct owner_record *record);
