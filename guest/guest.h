/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The built-in guest: all of it runs at CPL 3 with interrupts off; boot.S holds the little that
 * CPL 0 does. One `struct vcpu` a vCPU, written by that vCPU only, unless said otherwise; vCPU 0
 * also owns the serial port.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "layout.h"
#include "x86.h"

#define PAGE       4096ull
#define PAGE_WORDS 512
#define TOP_GAPS   8
#define GAP_LIST   512
#define WORK_RING  4096   /* milliseconds */
#define WORK_IO    0x8000 /* mark of a millisecond in which the vCPU talked to a device */
#define WORK_MAX   0x7fff

struct vcpu;

/* A kind of work: one row in config.c. step() does a piece of it, well under 10 us, and returns
 * how many units of work that was. */
struct mode {
	const char *name;
	uint64_t hot, check_us; /* defaults */
	unsigned int (*step)(struct vcpu *vcpu, uint64_t now);
};

struct config {
	const struct mode *mode;
	uint64_t hot, fill; /* bytes */
	uint64_t pace_us, interval_ms, cpus, seed, damage;
	uint64_t top;      /* 1: memory is taken from the highest address down */
	uint64_t check_us; /* one cold page is checked per so many us and vCPU; 0: never */
};

enum gap_kind { GAP_RUN, GAP_IO, GAP_MOVE };

struct gap {
	uint64_t start, length; /* TSC */
	enum gap_kind kind;
};

struct range {
	uint64_t first, pages; /* in pages of the guest's linear view, see memory_page() */
};

struct vcpu {
	unsigned int id; /* dense, 0 is the boot vCPU */
	bool dead;       /* stopped by an exception */
	struct range hot, cold;

	/* measure.c */
	uint64_t last; /* TSC of the latest look at the clock */
	uint64_t bucket, bucket_end;
	uint16_t work_ring[WORK_RING];
	struct gap top[TOP_GAPS];  /* of the running interval, longest first */
	struct gap list[GAP_LIST]; /* ring */
	uint64_t listed;           /* gaps ever put into it */
	struct gap candidate;      /* longest since the generation was last read */
	bool candidate_pending;
	uint64_t read_time; /* token bucket of generation reads */
	uint32_t generation;
	uint64_t work; /* since start */

	/* report.c: the interval that ended last, valid once `interval` says so */
	struct gap interval_top[TOP_GAPS];
	uint64_t interval_work;
	uint64_t interval;

	/* work.c */
	uint64_t sweep, position; /* position: pages of the hot part done in this sweep */
	uint64_t pause_until;
	uint64_t cold_position, cold_due;
	uint64_t wrong, checked_pages;
	uint64_t check_request, check_position, check_done;
};

struct guest {
	struct config config;
	unsigned int cpus; /* that run */
	struct vcpu *vcpus;
	uint64_t tsc_khz;
	const char *tsc_from;
	uint64_t memory, usable; /* bytes */
	uint64_t interval;       /* number of the running one */
	uint64_t check_request;  /* full checks asked for so far */
	uint64_t quiet_until;    /* nothing is printed before: a move has just been */
	bool move_device;
};
extern struct guest guest;

/* Of a word that another vCPU may write or read at the same time. */
#define load(p)         __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define store(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)

/* cpu.c */
struct cpuid {
	uint32_t eax, ebx, ecx, edx;
};
struct cpuid cpu_id(uint32_t leaf, uint32_t subleaf);
void cpu_set_page_tables(uint64_t cr3);
void cpu_park(void) __attribute__((noreturn));
void cpu_reset(void) __attribute__((noreturn));
void cpu_power_off(void) __attribute__((noreturn));
/* Powers off, or halts where that cannot be. */
void cpu_give_up(void) __attribute__((noreturn));
/* Finds guest.tsc_khz and guest.tsc_from. */
void cpu_find_tsc_rate(void);
/* Starts the other vCPUs; returns how many run, this one included, within the time limit. */
unsigned int cpu_start_others(unsigned int wanted);
/* On another vCPU: its id; parks when it came too late. */
unsigned int cpu_register(void);
void cpu_delay_us(uint64_t us);

/* config.c: false: *text says what is wrong (static text and the offending word). */
bool config_parse(const char *line, struct config *config, const char **text, char word[32]);

/* memory.c */
struct start_info;
/* Copies the command line out of the start info and learns the memory map; NULL when the start
 * info is not as it should be (*text says how). */
const char *memory_init(const struct start_info *info, const char **text);
bool memory_is_ram(uint64_t start, uint64_t length);
/* Page number `index` of what is free for hot and cold sets, lowest address first
 * (with `top`, highest). */
uint64_t *memory_page(uint64_t index);

/* serial.c: lines. Nothing is sent before line_end(), and then nothing comes in between. */
void serial_init(void);
void line_begin(const char *kind); /* "godwit-guest KIND"; "" for none */
void line_text(const char *text);
void line_number(const char *name, uint64_t value); /* " name=decimal" */
void line_hex(const char *name, uint64_t value);    /* " name=0x..." */
void line_string(const char *name, const char *value);
void line_hex4(uint16_t value);
void line_end(void);
/* The same, whatever state the others are in: for a vCPU that had an exception. */
void line_begin_fault(struct vcpu *vcpu);
/* A byte, or -1. */
int serial_read(void);
/* Prints why nothing is started, and gives up. */
void guest_refuse(const char *text, const char *word) __attribute__((noreturn));

/* measure.c */
void measure_start(struct vcpu *vcpu);
/* Between pieces of work: takes the time, accounts `work` units, notes a gap. Returns the TSC. */
uint64_t measure_tick(struct vcpu *vcpu, unsigned int work);
/* After a device access: its time is no gap, unless a move fell into it. */
void measure_io(struct vcpu *vcpu);
uint64_t tsc_to_us(uint64_t ticks);
uint64_t us_to_tsc(uint64_t us);
struct move {
	uint32_t generation;
	unsigned int cpu;
	uint64_t start, length; /* of the longest pause over the vCPUs */
};
/* The latest move, or the one before while it is being written. On vCPU 0. */
struct move measure_last_move(void);

/* work.c */
void work_fill(struct vcpu *vcpu);
void work_damage(void);
unsigned int work_stress(struct vcpu *vcpu, uint64_t now);
unsigned int work_idle(struct vcpu *vcpu, uint64_t now);
struct wrong_word {
	uint64_t address, expected, found;
};
/* The next wrong word that has not been printed; false when there is none. */
bool work_next_wrong(struct wrong_word *word);

/* report.c */
void report_start(void);
/* On vCPU 0 after each piece of work. */
void report_poll(struct vcpu *vcpu, uint64_t now);
/* On every vCPU: closes the interval when vCPU 0 began another. */
void report_interval(struct vcpu *vcpu);

void *memcpy(void *to, const void *from, size_t length);
void *memset(void *to, int value, size_t length);
