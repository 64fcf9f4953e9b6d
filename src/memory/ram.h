/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guest RAM: a short list of regions, each a piece of guest-physical address space backed by a
 * descriptor (or anonymous memory) and mapped here. Region 0 is the memory below the 3 GiB hole,
 * region 1 what lies above 4 GiB.
 *
 * Every access by guest-physical address goes through ram_pointer(), which checks it. Every write
 * that the monitor itself (or I/O it completed) makes into guest RAM is reported by
 * ram_mark_dirty(), since KVM's log sees only the vCPUs.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/error.h"
#include "kvm/slots.h"

#define RAM_PAGE_SIZE  4096u
#define RAM_PAGE_SHIFT 12
#define RAM_HOLE_START UINT64_C(0xc0000000)  /* 3 GiB */
#define RAM_HOLE_END   UINT64_C(0x100000000) /* 4 GiB */

enum ram_backing {
	RAM_BACKING_PRIVATE, /* anonymous memory, huge pages by madvise */
	RAM_BACKING_SHARED,  /* memfd, MAP_SHARED */
	RAM_BACKING_HUGETLB, /* memfd with MFD_HUGETLB, 2 MiB pages */
};

struct ram_region {
	char name[16];      /* "ram.low", "ram.high": what the stream calls it */
	uint64_t gpa, size; /* bytes */
	int fd;             /* -1 for private memory */
	uint64_t fd_offset;
	uint8_t *hva;
	uint64_t host_page; /* granule of discard and population: 2 MiB if huge pages may back it */
	_Atomic(uint64_t) *written; /* pages written by the monitor, one bit each; always present */
	/* Its summary, a bit for 64 words: set after the page's bit, and to be taken before it. */
	_Atomic(uint64_t) *written_blocks;
};

#define RAM_MAX_REGIONS 4

struct ram {
	struct ram_region regions[RAM_MAX_REGIONS];
	unsigned int count;
	enum ram_backing backing;
	uint64_t size;         /* bytes, all regions */
	_Atomic(bool) logging; /* ram_mark_dirty() records only while set */
};

static inline uint64_t ram_region_pages(const struct ram_region *region)
{
	return region->size >> RAM_PAGE_SHIFT;
}

const char *ram_backing_name(enum ram_backing backing);
int ram_backing_parse(const char *text, enum ram_backing *backing, struct error **err);

/*
 * Reserves `size` bytes of guest RAM (at least 2 MiB, a multiple of 2 MiB), 2 MiB-aligned, with
 * MADV_DONTFORK, and MADV_HUGEPAGE for private memory, and for shared memory where the host's
 * shmem_enabled lets it have huge pages; nothing is populated. More than the host has is refused.
 * The files of shared and hugetlb memory are sealed at their size. Errors name the size
 * and what to do (hugetlb shortage: how many pages are free, which file sets it).
 */
int ram_create(struct ram **ram, uint64_t size, enum ram_backing backing, struct error **err);
void ram_destroy(struct ram *ram);

/* Gives each region a memory slot. */
int ram_attach(struct ram *ram, struct kvm_slots *slots, struct error **err);

/* The region that holds all of [gpa, gpa + size), or NULL. size 0 counts as 1. */
struct ram_region *ram_find(struct ram *ram, uint64_t gpa, uint64_t size);

/* Host pointer to [gpa, gpa + size) or NULL when any byte of it is not RAM. Any thread. */
void *ram_pointer(struct ram *ram, uint64_t gpa, uint64_t size);

/* Checked copies; ram_write() marks dirty. Return 0 or -EFAULT. */
int ram_read(struct ram *ram, uint64_t gpa, void *data, uint64_t size);
int ram_write(struct ram *ram, uint64_t gpa, const void *data, uint64_t size);

/* Records that [gpa, gpa + size) was written by someone KVM does not see. Any thread, lock-free,
 * window-safe; parts outside RAM are ignored. */
void ram_mark_dirty(struct ram *ram, uint64_t gpa, uint64_t size);

/* Zeroes and gives back all memory (machine reset keeps RAM; this is for a destination that gave
 * up). */
int ram_discard_all(struct ram *ram, struct error **err);
