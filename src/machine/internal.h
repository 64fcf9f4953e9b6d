/* SPDX-License-Identifier: Apache-2.0 */
/* The machine from the inside; for the files of this folder only. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include "arch/x86/cpuid.h"
#include "arch/x86/platform.h"
#include "arch/x86/vcpu_state.h"
#include "base/publish.h"
#include "device/bus.h"
#include "device/cmos.h"
#include "device/movegen.h"
#include "device/power.h"
#include "arch/x86/probe.h"
#include "device/serial.h"
#include "kvm/vcpu.h"
#include "kvm/vm.h"
#include "machine/boot.h"
#include "machine/machine.h"
#include "machine/runstate.h"
#include "memory/dirty_tracker.h"
#include "migration/owner.h"

#define MACHINE_VERSION 1

/* What the guest, or KVM about it, has asked for; handled by the machine's own thread. */
#define REQUEST_RESET    0x1u
#define REQUEST_SHUTDOWN 0x2u
#define REQUEST_ERROR    0x4u
#define REQUEST_QUIT     0x8u

/* For a stop that no deadline bounds: longer than any vCPU needs. */
#define MACHINE_STOP_US 10000000u

#define MACHINE_OBJECTS (MACHINE_MAX_VCPUS + X86_PLATFORM_OBJECTS + 4)

struct machine {
	struct machine_config config; /* what was asked for; once built, what is */
	machine_listener *listener;
	void *opaque;
	pthread_mutex_t event_lock; /* after `lock` */

	/* Run state: held through each change of it, while vCPUs are waited for too. Never taken on
	 * the control thread. */
	pthread_mutex_t lock;
	enum machine_state state, state_before; /* before: of FINISH_MIGRATE */
	bool in_doubt;
	_Atomic(bool) quitting;   /* what ends from here on is meant to */
	bool arrive_paused;       /* an incoming guest is to stay paused */
	uint64_t stopped_real_us; /* when the last stop was; for an event that is sent later */
	struct published status;

	pthread_t worker;
	bool worker_started;
	pthread_mutex_t request_lock;
	pthread_cond_t request_wake;
	_Atomic(unsigned int) requests;
	struct kvm_vcpu *failed_vcpu;

	struct kvm_system system;
	bool built;
	struct kvm_vm vm;
	struct ram *ram;
	struct dirty_tracker tracker;
	struct dirty_subscriber migration_dirty;
	bool move_stopped; /* the vCPUs are parked by a move; the engine's thread only */
	struct x86_cpuid cpuid, host_cpuid;
	struct vcpu_layout layout;
	struct kvm_vcpu *vcpus;
	struct x86_vcpu *states;
	unsigned int vcpu_count; /* created so far */
	struct x86_platform platform;
	struct boot boot;
	struct bus ports, mmio;
	struct x86_probe probe; /* a destination's, until the guest has arrived */
	struct serial serial;
	struct power power;
	struct cmos cmos;
	struct movegen movegen;
	bool serial_attached;
	struct state_object objects[MACHINE_OBJECTS];
	unsigned int object_count;

	struct throttle *throttle;
	struct dirty_rate *dirty_rate;
	struct owner_record owner;
	struct migration *migration;
};

/* config.c */
int machine_config_copy(struct machine_config *to, const struct machine_config *from);
int machine_config_check(const struct machine_config *config, struct error **err);
int machine_config_set_defaults(struct machine_config *config, struct error **err);

/* build.c: VM, memory, vCPUs (threads parked), devices, from machine->config and machine->cpuid. */
int machine_build(struct machine *machine, struct error **err);
/* The serial line and its host end; before machine_build(). */
int machine_attach_serial(struct machine *machine, struct error **err);
void machine_unbuild(struct machine *machine);

/* vcpus.c: a vCPU's calls into the machine. */
extern const struct kvm_vcpu_ops machine_vcpu_ops;
int machine_vcpus_error(struct machine *machine, int code, struct error **err);

/* events.c */
void machine_emit(struct machine *machine, const struct machine_event *event);
void machine_emit_simple(struct machine *machine, enum machine_event_type type);
uint64_t machine_realtime_us(void);
/* `lock` held. */
void machine_publish(struct machine *machine);
void machine_set_state(struct machine *machine, enum machine_state state);

/* requests.c: the machine's own thread. */
int machine_worker_start(struct machine *machine, struct error **err);
void machine_worker_stop(struct machine *machine);
void machine_request(struct machine *machine, unsigned int request);

/* machine.c, with `lock` held. */
int machine_stop_vcpus(struct machine *machine, uint64_t deadline_us, struct error **err);
void machine_run_vcpus(struct machine *machine);
int machine_reset_locked(struct machine *machine, struct error **err);
int machine_load_guest(struct machine *machine, struct error **err);

/* devices.c: all devices but those in KVM. Window-safe. */
void machine_devices_save(struct machine *machine);
void machine_devices_load(struct machine *machine);
void machine_devices_reset(struct machine *machine);

/* describe.c */
int machine_describe(struct machine *machine, struct description *d, struct error **err);
/* Compares and, for what was not given here, adopts into *config and *cpuid. */
int machine_adopt(struct machine *machine, const struct description *d,
		  struct machine_config *config, struct x86_cpuid *cpuid, struct error **err);

/* throttle.c, dirty_rate.c: made with the machine; stopped before it is taken apart. */
int throttle_create(struct machine *machine, struct error **err);
void throttle_stop(struct machine *machine);
/* All vCPUs sleep for that part of their time; 0: none. */
void throttle_set_all(struct machine *machine, unsigned int percent);
int dirty_rate_create(struct machine *machine, struct error **err);
void dirty_rate_stop(struct machine *machine);

/* migrate_log.c: the log_ operations of migration/ops.h. */
int machine_log_start(void *opaque, struct error **err);
void machine_log_stop(void *opaque);
bool machine_log_initially_set(void *opaque);
void machine_throttle(void *opaque, unsigned int percent);
int machine_log_harvest(void *opaque, struct page_map *maps);
int machine_log_clear(void *opaque, unsigned int region, uint64_t first, uint64_t count,
		      const uint64_t *seen);

/* migrate_ops.c */
extern const struct migration_ops machine_migration_ops;
extern const struct migration_callbacks machine_migration_callbacks;
