/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine without KVM behind struct migration_ops: real guest RAM, a thread that plays the vCPUs
 * and writes to it, a dirty log in software, state objects of every type, and a counter and an
 * injectable failure for every operation.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "memory/ram.h"
#include "migration/migration.h"
#include "migration/ops.h"

/* As KVM has them: the log starts empty or full, and a harvest clears or log_clear() does. */
enum fake_log { FAKE_LOG_HARVEST_CLEARS, FAKE_LOG_MANUAL, FAKE_LOG_INITIALLY_SET };

enum fake_operation {
	FAKE_DESCRIBE,
	FAKE_BUILD,
	FAKE_LOG_START,
	FAKE_LOG_STOP,
	FAKE_LOG_HARVEST,
	FAKE_LOG_CLEAR,
	FAKE_SAVE_EARLY,
	FAKE_STOP,
	FAKE_RESUME,
	FAKE_MOVED,
	FAKE_IN_DOUBT,
	FAKE_LOAD,
	FAKE_RUN,
	FAKE_ARRIVED,
	FAKE_LOCKS_RELEASE,
	FAKE_LOCKS_ACQUIRE,
	FAKE_OPERATIONS,
};

struct fake_config {
	uint64_t size; /* bytes of RAM */
	enum ram_backing backing;
	enum fake_log log;
	uint64_t hot_pages;   /* the guest writes to pages [0, hot_pages) while it runs; 0: idle */
	unsigned int pace_us; /* between two writes; 0: as fast as it can */
	unsigned int vcpus;   /* state objects; at least 1 */
	bool write_at_stop;   /* page 1, as a vCPU's last act: the window then has memory to send */
};

/* One processor's state, a value of every type. */
struct fake_vcpu {
	uint8_t mode;
	uint16_t selector;
	uint32_t flags;
	uint64_t pc, early_only;
	uint8_t registers[200];
};

struct fake_clock {
	uint64_t ticks;
};

/*
 * What both sides of a move share, if need be across processes: who runs. Whoever starts to run
 * while the other one does, and has not been killed, counts a violation.
 */
struct fake_board {
	_Atomic(int) running[2], dead[2], violations;
};

struct fake_guest {
	struct fake_config config;
	bool destination;
	struct ram *ram;
	struct state_object *objects;
	unsigned int object_count;
	struct fake_vcpu *vcpus;
	struct fake_clock clock;
	struct owner_record owner;
	struct fake_board *board; /* may be NULL */

	_Atomic(uint64_t) *dirty[RAM_MAX_REGIONS];
	_Atomic(bool) logging;
	_Atomic(bool)
		in_window; /* stopped by the move: the log is neither cleared nor switched off */

	pthread_t thread;
	bool thread_started;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool run_wanted, is_running, quit; /* under lock */
	bool was_running;                  /* at the stop */
	_Atomic(uint64_t) writes;

	_Atomic(unsigned int) counts[FAKE_OPERATIONS];
	/* The operation's n-th call (from 1) fails with EIO; 0: none. */
	unsigned int fail[FAKE_OPERATIONS];
	unsigned int fail_more[FAKE_OPERATIONS]; /* so many calls after that one fail too */
	unsigned int delay_us[FAKE_OPERATIONS];
	/* A refusal by name in build() when the value is not that of the source. */
	const char *model;
	/* The memory as it was at the stop or before the run, and how many pages were allocated. */
	bool keep_copy;
	uint8_t *copy;
	uint64_t copy_touched;

	struct migration *migration;
	enum migration_status seen[32]; /* as status_changed() was told */
	_Atomic(unsigned int) seen_count;
};

extern const struct migration_ops fake_ops;

/* A source has its RAM, runs or is paused; a destination has none until it is built. */
void fake_create(struct fake_guest *guest, const struct fake_config *config, bool destination);
/* Destroys the engine as well. */
void fake_destroy(struct fake_guest *guest);
/* Sets guest->migration; fields may be changed between the two calls. */
void fake_create_engine(struct fake_guest *guest);

/* Makes the guest's thread run, or stop and be still. */
void fake_set_running(struct fake_guest *guest, bool running);
bool fake_is_running(struct fake_guest *guest);

/* Writes a pattern that depends on the page, as the guest itself would. */
void fake_fill(struct fake_guest *guest, uint64_t first, uint64_t count, uint64_t seed);
/* Writes as a device does, without the log of the vCPUs: ram_write(). */
void fake_device_write(struct fake_guest *guest, uint64_t gpa, uint64_t value);

static inline unsigned int fake_count(struct fake_guest *guest, enum fake_operation operation)
{
	return atomic_load(&guest->counts[operation]);
}

/* Waits until the migration has ended or is in doubt; fails the test after `seconds`. */
void fake_wait(struct fake_guest *guest, unsigned int seconds, struct migration_info *info);
/* Waits for a status on the way. */
void fake_wait_status(struct fake_guest *guest, enum migration_status status, unsigned int seconds);
/* True when status_changed() was told this status. */
bool fake_saw(struct fake_guest *guest, enum migration_status status);
