/* SPDX-License-Identifier: Apache-2.0 */
#include "dirty_machine.h"

#include <linux/kvm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include "base/clock.h"

#define TABLES 0x10000u
#define CODE   0x20000u
#define FLAG   0x30000u /* the guest writes here when it is done */
#define START  0x400000u

void bench_fail(const char *what, struct error *err)
{
	fprintf(stderr, "godwit bench dirty: %s%s%s\n", what, err ? ": " : "",
		err ? error_text(err) : "");
	exit(1);
}

static void no_pio(void *opaque, uint16_t port, bool write, void *data, unsigned int size)
{
}

static void no_mmio(void *opaque, uint64_t gpa, bool write, void *data, unsigned int size)
{
}

static int no_command(struct kvm_vcpu *vcpu, unsigned int bits)
{
	return 0;
}

static void exited(struct kvm_vcpu *vcpu, enum kvm_vcpu_exit reason)
{
	bench_fail(reason == KVM_VCPU_EXIT_ERROR ? vcpu->failure : "the guest has crashed", NULL);
}

static const struct kvm_vcpu_ops ops = {no_pio, no_mmio, no_command, exited};

/* Anonymous and lazily backed, so that a region may be larger than this host's memory. */
static void make_ram(struct bench_machine *machine, uint64_t size)
{
	struct ram_region *region = &machine->ram.regions[0];
	uint64_t words = BITMAP_WORDS(size >> 12);

	machine->region = region;
	machine->ram = (struct ram){.count = 1, .size = size};
	*region = (struct ram_region){.size = size, .fd = -1, .name = "ram.low"};
	region->hva = mmap(NULL, size, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	region->written = calloc(words, sizeof(uint64_t));
	region->written_blocks = calloc(BITMAP_WORDS(BITMAP_WORDS(words)), sizeof(uint64_t));
	if (region->hva == MAP_FAILED || !region->written || !region->written_blocks)
		bench_fail("no memory", NULL);
	madvise(region->hva, size, MADV_HUGEPAGE);
}

static void add_slots(struct bench_machine *machine, unsigned int count)
{
	uint64_t pages = machine->ram.size >> 12, at = 0;
	struct error *err = NULL;

	for (unsigned int i = 0; i < count; i++) {
		uint64_t end = pages * (i + 1) / count;

		if (kvm_slots_add(machine->slots, at << 12, (end - at) << 12,
				  machine->region->hva + (at << 12), 0, &err) < 0)
			bench_fail("cannot add a slot", err);
		at = end;
	}
}

static void put(struct bench_machine *machine, uint64_t gpa, const void *data, size_t size)
{
	memcpy(machine->region->hva + gpa, data, size);
}

/* 64-bit mode at privilege level 3, where every KVM runs code by itself; 512 GiB mapped one to one.
 */
static void prepare_guest(struct bench_machine *machine, struct kvm_sregs *sregs)
{
	const struct kvm_segment data = {.limit = 0xffffffff,
					 .selector = 0x2b,
					 .type = 3,
					 .s = 1,
					 .dpl = 3,
					 .present = 1,
					 .db = 1,
					 .g = 1};
	uint64_t entry = (TABLES + 0x1000) | 7;

	put(machine, TABLES, &entry, 8);
	for (uint64_t gib = 0; gib < 4; gib++) {
		entry = (TABLES + 0x2000 + gib * 0x1000) | 7;
		put(machine, TABLES + 0x1000 + gib * 8, &entry, 8);
		for (uint64_t i = 0; i < 512; i++) {
			entry = gib << 30 | i << 21 | 0x87;
			put(machine, TABLES + 0x2000 + gib * 0x1000 + i * 8, &entry, 8);
		}
	}
	sregs->cr0 = 0x80010033;
	sregs->cr3 = TABLES;
	sregs->cr4 = 0x620;
	sregs->efer = 0x500;
	sregs->ds = sregs->es = sregs->fs = sregs->gs = sregs->ss = sregs->cs = data;
	sregs->cs.selector = 0x33;
	sregs->cs.type = 11;
	sregs->cs.l = 1;
	sregs->cs.db = 0;
}

/* 1: incl (%rdi); add %rdx, %rdi; dec %rcx; jnz 1b; movl $1, (%rbx); 2: jmp 2b */
static const uint8_t code[] = {0xff, 0x07, 0x48, 0x01, 0xd7, 0x48, 0xff, 0xc9, 0x75,
			       0xf6, 0xc7, 0x03, 1,    0,    0,    0,    0xeb, 0xfe};

static void make_vcpu(struct bench_machine *machine)
{
	struct error *err = NULL;
	struct kvm_sregs sregs;

	if (x86_cpuid_init(&machine->cpuid, &machine->system, "host", &err) < 0 ||
	    kvm_vcpu_create(&machine->vcpu, &machine->vm, 0, &ops, machine, &err) < 0 ||
	    x86_cpuid_apply(&machine->cpuid, machine->vcpu.fd, 0, 1, &err) < 0 ||
	    kvm_vcpu_start(&machine->vcpu, &err) < 0)
		bench_fail("cannot make a vCPU", err);
	if (ioctl(machine->vcpu.fd, KVM_GET_SREGS, &sregs) != 0)
		bench_fail("KVM_GET_SREGS", NULL);
	prepare_guest(machine, &sregs);
	put(machine, CODE, code, sizeof(code));
	if (ioctl(machine->vcpu.fd, KVM_SET_SREGS, &sregs) != 0)
		bench_fail("KVM_SET_SREGS", NULL);
}

void bench_machine_open(struct bench_machine *machine, const struct bench_setup *setup)
{
	const struct kvm_dirty_options dirty = {.kind = setup->kind,
						.ring_entries = KVM_DIRTY_RING_MAX};
	struct error *err = NULL;

	*machine = (struct bench_machine){0};
	if (kvm_system_open(&machine->system, &err) < 0)
		bench_fail("KVM", err);
	if (setup->limit)
		machine->system.max_slots = setup->limit;
	if (kvm_vm_create(&machine->vm, &machine->system, &dirty, &err) < 0)
		bench_fail("cannot create a VM", err);
	machine->slots = &machine->vm.slots;
	make_ram(machine, setup->memory);
	add_slots(machine, setup->slots);
	make_vcpu(machine);
	if (dirty_tracker_init(&machine->tracker, &machine->ram, &machine->vm.dirty, machine->slots,
			       &err) < 0 ||
	    page_map_init(&machine->map, setup->memory >> 12) < 0 ||
	    dirty_tracker_subscribe(&machine->tracker, &machine->subscriber, &err) < 0)
		bench_fail("cannot track writes", err);
	bench_machine_sync(machine, false);
	bench_machine_clear(machine);
}

void bench_machine_close(struct bench_machine *machine)
{
	dirty_tracker_unsubscribe(&machine->tracker, &machine->subscriber);
	dirty_tracker_free(&machine->tracker);
	page_map_free(&machine->map);
	kvm_vcpu_destroy(&machine->vcpu);
	kvm_vm_destroy(&machine->vm);
	kvm_system_close(&machine->system);
	munmap(machine->region->hva, machine->region->size);
	free(machine->region->written);
	free(machine->region->written_blocks);
}

void bench_machine_write(struct bench_machine *machine, uint64_t count, uint64_t stride)
{
	struct kvm_regs regs = {.rip = CODE,
				.rflags = 2,
				.rdi = START,
				.rcx = count,
				.rdx = stride << 12,
				.rbx = FLAG};
	volatile uint32_t *flag = (volatile uint32_t *)(machine->region->hva + FLAG);

	*flag = 0;
	if (ioctl(machine->vcpu.fd, KVM_SET_REGS, &regs) != 0)
		bench_fail("KVM_SET_REGS", NULL);
	kvm_vcpus_tell(&machine->vcpu, 1, KVM_VCPU_RUN);
	while (*flag == 0)
		nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
	kvm_vcpus_tell(&machine->vcpu, 1, 0);
	kvm_vcpus_wait(&machine->vcpu, 1, 0);
}

uint64_t bench_machine_sync(struct bench_machine *machine, bool stopped)
{
	uint64_t start = clock_ns();

	if (dirty_tracker_harvest(&machine->tracker, &machine->subscriber, &machine->map, stopped) <
	    0)
		bench_fail("the harvest fails", NULL);
	return clock_ns() - start;
}

uint64_t bench_machine_clear(struct bench_machine *machine)
{
	uint64_t start = clock_ns(), end;

	for (uint64_t at = 0; at < machine->map.pages; at += 16384) {
		uint64_t left = machine->map.pages - at;
		size_t first;

		if (page_map_next_run(&machine->map, at, &first) == 0)
			break;
		if (first < at + 16384 &&
		    dirty_tracker_clear(&machine->tracker, &machine->subscriber, 0, at,
					left < 16384 ? left : 16384, machine->map.words) < 0)
			bench_fail("the clear fails", NULL);
	}
	end = clock_ns();
	page_map_clear_all(&machine->map);
	return end - start;
}
