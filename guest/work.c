/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words. A page's words are base + i * STEP, the base a hash of address, seed and sweep, so
 * that a page that is old, from elsewhere, or torn shows. A wrong word is counted once and then
 * set right.
 */
#include "guest.h"

#define STEP       0x9e3779b97f4a7c15ull
#define COLD_SWEEP UINT64_MAX
#define WRONG_LOG  16
#define SPIN       256

typedef uint64_t words __attribute__((vector_size(16), may_alias));

static struct wrong_word wrong_log[WRONG_LOG];
static bool wrong_ready[WRONG_LOG];
static uint64_t wrong_logged, wrong_printed;

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static uint64_t page_base(const uint64_t *page, uint64_t sweep)
{
	return mix((uint64_t)page ^ mix(guest.config.seed + sweep * STEP));
}

static void page_write(uint64_t *page, uint64_t base)
{
	words value = {base, base + STEP}, *p = (words *)page;

	for (unsigned int i = 0; i < PAGE_WORDS / 2; i++) {
		p[i] = value;
		value += 2 * STEP;
	}
}

static bool page_check(const uint64_t *page, uint64_t base)
{
	words value = {base, base + STEP}, difference = {0, 0};
	const words *p = (const words *)page;

	for (unsigned int i = 0; i < PAGE_WORDS / 2; i++) {
		difference |= p[i] ^ value;
		value += 2 * STEP;
	}
	return !(difference[0] | difference[1]);
}

/* page_check() of the old and page_write() of the new values in one pass. */
static bool page_step(uint64_t *page, uint64_t old_base, uint64_t new_base)
{
	words old = {old_base, old_base + STEP}, new = {new_base, new_base + STEP};
	words difference = {0, 0}, *p = (words *)page, delta = new - old;

	for (unsigned int i = 0; i < PAGE_WORDS / 2; i++) {
		/* The new value is made from what was found: what is wrong stays wrong by as much
		 * and is counted by the slow path below. */
		words found = p[i];

		difference |= found ^ old;
		p[i] = found + delta;
		old += 2 * STEP;
	}
	return !(difference[0] | difference[1]);
}

/* `moved`: what page_step() added to each word since it was found. */
static void page_repair(struct vcpu *vcpu, uint64_t *page, uint64_t base, uint64_t moved)
{
	for (unsigned int i = 0; i < PAGE_WORDS; i++) {
		uint64_t expected = base + i * STEP, entry;

		if (page[i] == expected)
			continue;
		entry = __atomic_fetch_add(&wrong_logged, 1, __ATOMIC_RELAXED);
		if (entry < WRONG_LOG) {
			wrong_log[entry] = (struct wrong_word){(uint64_t)&page[i], expected - moved,
							       page[i] - moved};
			store(&wrong_ready[entry], true);
		}
		page[i] = expected;
		vcpu->wrong++;
	}
}

bool work_next_wrong(struct wrong_word *word)
{
	if (wrong_printed == WRONG_LOG || !load(&wrong_ready[wrong_printed]))
		return false;
	*word = wrong_log[wrong_printed++];
	return true;
}

void work_fill(struct vcpu *vcpu)
{
	for (uint64_t i = 0; i < vcpu->hot.pages; i++) {
		uint64_t *page = memory_page(vcpu->hot.first + i);

		page_write(page, page_base(page, 0));
	}
	for (uint64_t i = 0; i < vcpu->cold.pages; i++) {
		uint64_t *page = memory_page(vcpu->cold.first + i);

		page_write(page, page_base(page, COLD_SWEEP));
	}
	vcpu->sweep = 1;
}

/* Flips a bit in config.damage words that lie evenly spread over all that was filled. */
void work_damage(void)
{
	uint64_t pages = 0;

	for (unsigned int i = 0; i < guest.cpus; i++)
		pages += guest.vcpus[i].hot.pages + guest.vcpus[i].cold.pages;
	for (uint64_t i = 0; i < guest.config.damage && pages; i++) {
		uint64_t at = pages * PAGE_WORDS / (guest.config.damage + 1) * (i + 1);
		volatile uint64_t *word = memory_page(at / PAGE_WORDS) + at % PAGE_WORDS;

		*word ^= 1ull << (i % 64);
	}
}

static bool reached(uint64_t now, uint64_t at, uint64_t limit_us)
{
	/* Further ahead than was ever set: the TSC stepped back. */
	return (int64_t)(now - at) >= 0 || at - now > us_to_tsc(limit_us);
}

static void check_cold(struct vcpu *vcpu, uint64_t index)
{
	uint64_t *page = memory_page(vcpu->cold.first + index);
	uint64_t base = page_base(page, COLD_SWEEP);

	if (!page_check(page, base))
		page_repair(vcpu, page, base, 0);
	vcpu->checked_pages++;
}

static void spin(void)
{
	for (unsigned int i = 0; i < SPIN; i++)
		__asm__ volatile("");
}

/* One page of the full check that vCPU 0 asked for. */
static void check_all(struct vcpu *vcpu)
{
	uint64_t index = vcpu->check_position++;

	if (index >= vcpu->hot.pages + vcpu->cold.pages) {
		vcpu->check_position = 0;
		store(&vcpu->check_done, vcpu->check_request);
	} else if (index >= vcpu->hot.pages) {
		check_cold(vcpu, index - vcpu->hot.pages);
	} else {
		uint64_t *page = memory_page(vcpu->hot.first + index);
		uint64_t base = page_base(page, vcpu->sweep - (index >= vcpu->position));

		if (!page_check(page, base))
			page_repair(vcpu, page, base, 0);
	}
}

/* What every mode does beside its own work; false when there was nothing to do. */
static bool check_some(struct vcpu *vcpu, uint64_t now)
{
	if (vcpu->check_done != vcpu->check_request ||
	    vcpu->check_request != load(&guest.check_request)) {
		if (vcpu->check_done == vcpu->check_request)
			vcpu->check_request = load(&guest.check_request);
		check_all(vcpu);
		return true;
	}
	if (!guest.config.check_us || !vcpu->cold.pages ||
	    !reached(now, vcpu->cold_due, guest.config.check_us))
		return false;
	vcpu->cold_due = now + us_to_tsc(guest.config.check_us);
	check_cold(vcpu, vcpu->cold_position);
	if (++vcpu->cold_position == vcpu->cold.pages)
		vcpu->cold_position = 0;
	return true;
}

/* A unit of work is a page of the hot set, checked and written. */
unsigned int work_stress(struct vcpu *vcpu, uint64_t now)
{
	uint64_t *page, old_base, new_base;

	if (check_some(vcpu, now))
		return 0;
	if (!vcpu->hot.pages)
		return spin(), 1;
	if (vcpu->pause_until) {
		if (!reached(now, vcpu->pause_until, guest.config.pace_us))
			return spin(), 0;
		vcpu->pause_until = 0;
	}
	page = memory_page(vcpu->hot.first + vcpu->position);
	old_base = page_base(page, vcpu->sweep - 1);
	new_base = page_base(page, vcpu->sweep);
	if (!page_step(page, old_base, new_base))
		page_repair(vcpu, page, new_base, new_base - old_base);
	if (++vcpu->position == vcpu->hot.pages) {
		vcpu->position = 0;
		vcpu->sweep++;
		if (guest.config.pace_us)
			vcpu->pause_until = now + us_to_tsc(guest.config.pace_us);
	}
	return 1;
}

/* A unit of work is a spin of 256 iterations. */
unsigned int work_idle(struct vcpu *vcpu, uint64_t now)
{
	if (check_some(vcpu, now))
		return 0;
	return spin(), 1;
}
