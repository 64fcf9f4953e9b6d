/* SPDX-License-Identifier: Apache-2.0 */
/* A VM to measure dirty tracking on: memory in so many slots, one vCPU that writes when told. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "arch/x86/cpuid.h"
#include "kvm/system.h"
#include "kvm/vcpu.h"
#include "kvm/vm.h"
#include "memory/dirty_tracker.h"

struct bench_machine {
	struct kvm_system system;
	struct kvm_vm vm;
	struct ram ram; /* one region at 0; not touched before the vCPU writes */
	struct ram_region *region;
	struct x86_cpuid cpuid;
	struct kvm_vcpu vcpu;
	struct dirty_tracker tracker;
	struct dirty_subscriber subscriber;
	struct page_map map;
	struct kvm_slots *slots;
};

struct bench_setup {
	enum kvm_dirty_kind kind;
	uint64_t memory; /* bytes */
	unsigned int slots;
	unsigned int limit; /* what the slot table is told the kernel allows; 0: what it says */
};

/* Exits with a message when something fails. The log is on, and every page armed and clean. */
void bench_machine_open(struct bench_machine *machine, const struct bench_setup *setup);
void bench_machine_close(struct bench_machine *machine);

/* The vCPU writes `count` pages, `stride` pages apart, from 4 MiB on, and is parked again. */
void bench_machine_write(struct bench_machine *machine, uint64_t count, uint64_t stride);

/* One harvest into machine->map, which is empty before: its time in ns. */
uint64_t bench_machine_sync(struct bench_machine *machine, bool stopped);

/* Clears what the map says, in stretches of 64 MiB, and empties the map: its time in ns. */
uint64_t bench_machine_clear(struct bench_machine *machine);

void bench_fail(const char *what, struct error *err) __attribute__((noreturn));
