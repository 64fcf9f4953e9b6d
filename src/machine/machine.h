/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One virtual machine: built from a configuration, owner of everything below it, with a run state
 * that only this module changes.
 *
 * Threads: unless said otherwise a function may be called on any thread; those marked [waits] wait
 * for vCPUs (milliseconds, bounded) and are not for the control thread itself.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/error.h"
#include "kvm/dirty.h"
#include "memory/ram.h"
#include "migration/migration.h"

#define MACHINE_MAX_VCPUS 64

/* QEMU's RunState names; machine_state_name() gives the text. */
enum machine_state {
	MACHINE_PRELAUNCH,
	MACHINE_INMIGRATE,
	MACHINE_RUNNING,
	MACHINE_PAUSED,
	MACHINE_FINISH_MIGRATE, /* stopped by a migration in its window */
	MACHINE_POSTMIGRATE,    /* the guest runs elsewhere: cont is refused */
	MACHINE_SHUTDOWN,       /* the guest powered off (with --no-shutdown) */
	MACHINE_INTERNAL_ERROR, /* KVM could not go on */
};
const char *machine_state_name(enum machine_state state);

struct machine_config {
	char *name;      /* --name; default "guest" */
	char *uuid;      /* --uuid; default random */
	uint64_t memory; /* bytes; 0: default 256 MiB, or what an incoming guest has */
	enum ram_backing backing;
	bool backing_given;
	unsigned int cpus; /* 0: default 1, or what an incoming guest has */
	char *cpu_model;   /* "host" (default) or "baseline" */
	char *kernel, *initrd, *append;
	char *guest;        /* --guest ARGUMENTS: the built-in guest and its command line */
	char *serial;       /* stdio | none | file path (default none) */
	char *incoming;     /* URI, "defer", or NULL */
	char *owner_record; /* path; NULL: automatic in the runtime folder; "off" */
	struct kvm_dirty_options dirty; /* --dirty-log, --dirty-ring; default auto */
	bool paused;                    /* start in prelaunch, wait for cont */
	bool no_shutdown;               /* guest power-off stops, the process stays */
	bool no_reboot;                 /* guest reset is a power-off */
	bool insecure, allow_exec;
};
void machine_config_free(struct machine_config *config);

enum machine_event_type {
	MACHINE_EVENT_STOP,
	MACHINE_EVENT_RESUME,
	MACHINE_EVENT_RESET,
	MACHINE_EVENT_SHUTDOWN,
	MACHINE_EVENT_POWERDOWN,
	MACHINE_EVENT_MIGRATION,      /* value: enum migration_status */
	MACHINE_EVENT_MIGRATION_PASS, /* value: pass */
	MACHINE_EVENT_EXIT,           /* the process should end; value: its exit status */
};

struct machine_event {
	enum machine_event_type type;
	uint64_t value;
	bool guest;           /* RESET, SHUTDOWN: the guest asked for it */
	const char *reason;   /* static: "guest-shutdown", "guest-reset", "host-qmp-quit", ... */
	uint64_t realtime_us; /* when it happened, CLOCK_REALTIME */
};

/* Called on any thread, in the order the events happened, never in the window; must be quick. */
typedef void machine_listener(void *opaque, const struct machine_event *event);

/* A plain struct (published); query commands are answered from it. */
struct machine_status {
	enum machine_state state;
	bool running;
	unsigned int cpus;
	uint64_t memory; /* bytes; 0 while an incoming machine is not described yet */
	enum ram_backing backing;
	pid_t vcpu_tid[MACHINE_MAX_VCPUS];
	uint64_t guest_pause_us; /* last pause across a move that the guest reported; 0: none */
};

struct machine;

/* Builds the machine (an incoming one: when the source has described it). The configuration is
 * copied. The guest does not run yet. */
int machine_create(struct machine **machine, const struct machine_config *config,
		   machine_listener *listener, void *opaque, struct error **err);
void machine_destroy(struct machine *machine);

/* Takes the owner record and lets the guest run (unless paused), or starts listening (incoming).
 * [waits] */
int machine_start(struct machine *machine, struct error **err);

int machine_stop(struct machine *machine, struct error **err);  /* [waits] */
int machine_cont(struct machine *machine, struct error **err);  /* [waits] */
int machine_reset(struct machine *machine, struct error **err); /* [waits] */
/* Presses the power button. */
int machine_powerdown(struct machine *machine, struct error **err);
/* Asks the process to end: MACHINE_EVENT_SHUTDOWN, then MACHINE_EVENT_EXIT. */
void machine_quit(struct machine *machine, const char *reason);

void machine_query(struct machine *machine, struct machine_status *status);
const struct machine_config *machine_get_config(const struct machine *machine);
struct migration *machine_migration(struct machine *machine);
