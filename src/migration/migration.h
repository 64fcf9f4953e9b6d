/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Live migration as the rest of the program uses it: one object a machine, for both directions.
 * Every call here is short and may be made on the control thread; the work is on the engine's own
 * thread, and its progress is a published snapshot.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "base/error.h"
#include "migration/ops.h"

/* QEMU's names; migration_status_name() gives the text. */
enum migration_status {
	MIGRATION_NONE,
	MIGRATION_SETUP,
	MIGRATION_ACTIVE,
	MIGRATION_PRE_SWITCHOVER, /* capability pause-before-switchover: waits for migrate-continue
				   */
	MIGRATION_DEVICE,         /* the window */
	MIGRATION_COMPLETED,
	MIGRATION_FAILED,
	MIGRATION_CANCELLING,
	MIGRATION_CANCELLED,
};
const char *migration_status_name(enum migration_status status);

/* Finer than the status, for people and for "is it hung?" logic. */
enum migration_phase {
	MIGRATION_PHASE_NONE,
	MIGRATION_PHASE_CONNECT,
	MIGRATION_PHASE_CHECK, /* HELLO, MACHINE, SCHEMA */
	MIGRATION_PHASE_SCAN,  /* dirty log on, page map read */
	MIGRATION_PHASE_ROUNDS,
	MIGRATION_PHASE_READY, /* early state, READY, INTENT, QUIET */
	MIGRATION_PHASE_SWITCHOVER,
	MIGRATION_PHASE_IN_DOUBT, /* COMMIT sent, no answer: x-migrate-resolve decides */
	MIGRATION_PHASE_DONE,
};
const char *migration_phase_name(enum migration_phase phase);

/* Microseconds, each on its own side's clock; total as the source saw it. */
struct switchover_account {
	uint64_t stop, harvest, memory, state, wire, load, resume, total;
};

/* A plain struct (published). */
struct migration_info {
	enum migration_status status;
	enum migration_phase phase;
	bool incoming;
	bool in_doubt;
	bool converging;        /* false: rounds no longer shrink the expected pause */
	uint64_t start_us;      /* CLOCK_MONOTONIC; 0 before the first migration */
	uint64_t total_time_us; /* so far, or in all */
	uint64_t setup_time_us;
	uint64_t last_progress_us; /* CLOCK_MONOTONIC of the last byte or step */
	uint64_t expected_downtime_us;
	uint64_t downtime_us;     /* as the source saw it; completed only */
	uint64_t ram_total;       /* bytes of guest RAM */
	uint64_t ram_transferred; /* bytes on the wire */
	uint64_t ram_remaining;
	uint64_t normal_pages, zero_pages, untouched_pages;
	uint64_t dirty_sync_count;
	uint64_t throttle_percent; /* auto-converge, now; 0: none */
	uint64_t dirty_pages_rate; /* pages a second in the last round */
	uint64_t bandwidth_bps;    /* bytes a second, measured */
	uint64_t precopy_bytes, downtime_bytes;
	struct switchover_account account; /* completed only */
	char error[512];                   /* why it failed; "" when it did not */
	char socket_address[128]; /* incoming: where it listens, with the port the kernel chose */
};

struct migration_parameters {
	uint64_t downtime_limit_ms; /* default 300 */
	/* Bytes a second; 0 = unlimited (default). Holds for the rounds; once the destination is
	 * told that the stop comes (INTENT), the last short rounds and the window go without it. */
	uint64_t max_bandwidth;
	uint64_t throttle_trigger_threshold; /* percent, default 50 */
	uint64_t cpu_throttle_initial;       /* percent, default 20 */
	uint64_t cpu_throttle_increment;     /* percent, default 10 */
	uint64_t max_cpu_throttle;           /* percent, default 99 */
	bool cpu_throttle_tailslow;
	uint64_t switchover_timeout_ms; /* bound for each wait in the hand-over, default 5000 */
};

struct migration_capabilities {
	bool auto_converge; /* throttles the guest when rounds do not shrink */
	bool events;        /* accepted; events are always sent */
	bool pause_before_switchover;
	bool return_path; /* always on */
};

struct migration_request {
	const char *uri; /* unix:PATH tcp:HOST:PORT fd:NAME exec:COMMAND */
	int fd;          /* for fd: — the descriptor, owned by the call; else -1 */
	bool check_only; /* HELLO and MACHINE alone: would it be accepted? */
	bool insecure;   /* tcp: to an address that is not loopback */
	bool allow_exec;
};

struct migration_callbacks {
	/* Called on the engine's thread, out of the window; must be quick. */
	void (*status_changed)(void *opaque, enum migration_status status);
	void (*pass)(void *opaque, uint64_t pass);
};

struct migration;

int migration_create(struct migration **m, const struct migration_ops *ops, void *ops_opaque,
		     const struct migration_callbacks *callbacks, void *callbacks_opaque,
		     struct error **err);
/* Cancels, waits (bounded by the step in hand), frees. */
void migration_destroy(struct migration *m);

/*
 * Starts a move; returns when it is under way, not when it is done. -EBUSY: one is running already;
 * -EINVAL: the URI; -EPERM: needs --insecure or --allow-exec. The answer to a check (check_only) is
 * the status completed or failed with its error.
 */
int migration_start(struct migration *m, const struct migration_request *request,
		    struct error **err);

/* Opens the listener (synchronously: a taken port or too long a path is an error here), then waits
 * for one source on its own thread. */
int migration_incoming(struct migration *m, const struct migration_request *request,
		       struct error **err);

int migration_cancel(struct migration *m);
/* From pre-switchover on. */
int migration_continue(struct migration *m, struct error **err);
/* In doubt only: the operator says where the guest is. */
int migration_resolve(struct migration *m, bool owner_here, struct error **err);

/* True while a move (either direction) is under way: the machine refuses changes meanwhile. */
bool migration_active(struct migration *m);

void migration_query(struct migration *m, struct migration_info *info);
void migration_get_parameters(struct migration *m, struct migration_parameters *parameters);
int migration_set_parameters(struct migration *m, const struct migration_parameters *parameters,
			     struct error **err);
void migration_get_capabilities(struct migration *m, struct migration_capabilities *capabilities);
int migration_set_capabilities(struct migration *m,
			       const struct migration_capabilities *capabilities,
			       struct error **err);
