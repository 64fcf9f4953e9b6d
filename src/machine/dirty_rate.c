/* SPDX-License-Identifier: Apache-2.0 */
#include "machine/dirty_rate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "machine/internal.h"
#include "memory/pagemap.h"
#include "memory/pagescan.h"

/* The log is cleared in stretches of 64 MiB, so that a migration never waits long. */
#define CLEAR_PAGES 16384u

struct sample {
	unsigned int region;
	uint64_t page;
	uint32_t checksum;
};

struct dirty_rate {
	struct machine *machine;
	pthread_t thread;
	bool started; /* the thread is to be joined */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool busy, quit;
	struct dirty_rate_request request;
	struct dirty_rate_info info; /* the thread's */
	struct published published;

	struct dirty_subscriber subscriber;
	struct page_map maps[RAM_MAX_REGIONS];
	uint64_t pages_before[MACHINE_MAX_VCPUS];
	struct sample *samples;
	size_t sample_count;
};

int dirty_rate_create(struct machine *machine, struct error **err)
{
	struct dirty_rate *rate = calloc(1, sizeof(*rate));
	pthread_condattr_t attributes;

	if (!rate || published_init(&rate->published, sizeof(struct dirty_rate_info)) < 0) {
		free(rate);
		return error_set(err, -ENOMEM, "no memory for the machine");
	}
	rate->machine = machine;
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_mutex_init(&rate->lock, NULL);
	pthread_cond_init(&rate->wake, &attributes);
	pthread_condattr_destroy(&attributes);
	machine->dirty_rate = rate;
	return 0;
}

/* Sleeps until then; false when the machine is being taken down. */
static bool wait_until(struct dirty_rate *rate, uint64_t us)
{
	const struct timespec until = {.tv_sec = (time_t)(us / 1000000),
				       .tv_nsec = (long)(us % 1000000 * 1000)};
	bool quit;

	pthread_mutex_lock(&rate->lock);
	while (!rate->quit && clock_us() < us)
		pthread_cond_timedwait(&rate->wake, &rate->lock, &until);
	quit = rate->quit;
	pthread_mutex_unlock(&rate->lock);
	return !quit;
}

static uint64_t mib_a_second(double bytes, uint64_t us)
{
	return us ? (uint64_t)(bytes / 1048576.0 * 1e6 / (double)us + 0.5) : 0;
}

/* --- sampling --- */

/* Pages that were never touched are not read: that would touch them. */
static uint32_t page_checksum(const struct ram_region *region, const uint64_t *touched,
			      uint64_t page)
{
	return bitmap_test(touched, page) ? pages_crc32c(0, region->hva + page * RAM_PAGE_SIZE, 1)
					  : pages_crc32c(0, (const uint8_t[RAM_PAGE_SIZE]){0}, 1);
}

static int take_samples(struct dirty_rate *rate, bool again, uint64_t *changed, struct error **err)
{
	struct ram *ram = rate->machine->ram;
	int code = 0;

	*changed = 0;
	for (unsigned int i = 0; code == 0 && i < ram->count; i++) {
		const struct ram_region *region = &ram->regions[i];
		uint64_t *touched =
			calloc(BITMAP_WORDS(ram_region_pages(region)), sizeof(*touched));

		code = touched ? pagemap_scan(region, touched, err)
			       : error_set(err, -ENOMEM, "no memory for a page map");
		for (size_t s = 0; code == 0 && s < rate->sample_count; s++) {
			struct sample *sample = &rate->samples[s];
			uint32_t checksum;

			if (sample->region != i)
				continue;
			checksum = page_checksum(region, touched, sample->page);
			if (again)
				*changed += checksum != sample->checksum;
			else
				sample->checksum = checksum;
		}
		free(touched);
	}
	return code;
}

static int choose_samples(struct dirty_rate *rate, struct error **err)
{
	struct ram *ram = rate->machine->ram;
	uint64_t gib = (ram->size + (1 << 30) - 1) >> 30, seed = clock_ns();

	rate->sample_count = rate->request.sample_pages * gib;
	rate->samples = calloc(rate->sample_count, sizeof(*rate->samples));
	if (!rate->samples)
		return error_set(err, -ENOMEM, "no memory for %zu samples", rate->sample_count);
	for (size_t s = 0; s < rate->sample_count; s++) {
		uint64_t page;

		seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		page = (seed >> 20) % (ram->size / RAM_PAGE_SIZE);
		for (unsigned int i = 0; i < ram->count; i++) {
			if (page < ram_region_pages(&ram->regions[i])) {
				rate->samples[s] = (struct sample){.region = i, .page = page};
				break;
			}
			page -= ram_region_pages(&ram->regions[i]);
		}
	}
	return 0;
}

static int by_sampling(struct dirty_rate *rate, struct error **err)
{
	uint64_t changed, start;
	int code = choose_samples(rate, err);

	if (code == 0)
		code = take_samples(rate, false, &changed, err);
	start = clock_us();
	if (code < 0)
		return code;
	if (!wait_until(rate, start + rate->request.time_us))
		return error_set(err, -ECANCELED, "the machine ends");
	code = take_samples(rate, true, &changed, err);
	rate->info.rate = mib_a_second((double)changed * (double)rate->machine->ram->size /
					       (double)rate->sample_count,
				       clock_us() - start);
	return code;
}

/* --- the log --- */

/* Not while a move has the guest stopped: its last harvest shall wait for nobody. */
static int harvest(struct dirty_rate *rate, struct error **err)
{
	struct machine_status status;
	int code;

	do {
		machine_query(rate->machine, &status);
	} while (status.state == MACHINE_FINISH_MIGRATE && wait_until(rate, clock_us() + 1000));
	code = dirty_tracker_harvest(&rate->machine->tracker, &rate->subscriber, rate->maps, false);
	return code < 0 ? error_set_errno(err, code, "cannot read the dirty log") : 0;
}

static int clear_all(struct dirty_rate *rate, struct error **err)
{
	int code = 0;

	for (unsigned int i = 0; i < rate->machine->ram->count; i++) {
		struct page_map *map = &rate->maps[i];
		size_t first;

		for (uint64_t at = 0; code == 0 && at < map->pages; at += CLEAR_PAGES) {
			uint64_t count =
				map->pages - at < CLEAR_PAGES ? map->pages - at : CLEAR_PAGES;

			if (page_map_next_run(map, at, &first) == 0)
				break;
			if (first < at + count)
				code = dirty_tracker_clear(&rate->machine->tracker,
							   &rate->subscriber, i, at, count,
							   map->words);
		}
		page_map_clear_all(map);
	}
	return code < 0 ? error_set_errno(err, code, "cannot re-arm the dirty log") : 0;
}

static void count_vcpus(struct dirty_rate *rate, uint64_t us)
{
	struct machine *machine = rate->machine;

	if (rate->request.mode != DIRTY_RATE_RING)
		return;
	rate->info.vcpu_count = machine->vcpu_count;
	for (unsigned int i = 0; i < machine->vcpu_count; i++) {
		uint64_t pages = atomic_load(&machine->vcpus[i].ring.pages);

		rate->info.vcpu_rate[i] =
			mib_a_second((double)(pages - rate->pages_before[i]) * RAM_PAGE_SIZE, us);
		rate->pages_before[i] = pages;
	}
}

static int by_log(struct dirty_rate *rate, struct error **err)
{
	struct ram *ram = rate->machine->ram;
	uint64_t start = 0, us, pages = 0;
	int code = 0;

	for (unsigned int i = 0; code == 0 && i < ram->count; i++)
		code = page_map_init(&rate->maps[i], ram_region_pages(&ram->regions[i]));
	if (code < 0)
		return error_set(err, code, "no memory for a bitmap of written pages");
	code = dirty_tracker_subscribe(&rate->machine->tracker, &rate->subscriber, err);
	if (code == 0)
		code = harvest(rate, err);
	if (code == 0)
		code = clear_all(rate, err);
	if (code < 0)
		return code;
	count_vcpus(rate, 0);
	start = clock_us();
	if (!wait_until(rate, start + rate->request.time_us))
		return error_set(err, -ECANCELED, "the machine ends");
	code = harvest(rate, err);
	us = clock_us() - start;
	for (unsigned int i = 0; i < ram->count; i++)
		pages += rate->maps[i].count;
	count_vcpus(rate, us);
	rate->info.rate = mib_a_second((double)pages * RAM_PAGE_SIZE, us);
	return code;
}

/* --- the job --- */

static void *measure_thread(void *opaque)
{
	struct dirty_rate *rate = opaque;
	struct error *err = NULL;
	int code;

	code = rate->request.mode == DIRTY_RATE_SAMPLING ? by_sampling(rate, &err)
							 : by_log(rate, &err);
	dirty_tracker_unsubscribe(&rate->machine->tracker, &rate->subscriber);
	for (unsigned int i = 0; i < RAM_MAX_REGIONS; i++)
		page_map_free(&rate->maps[i]);
	free(rate->samples);
	rate->samples = NULL;
	rate->info.status = code < 0 ? DIRTY_RATE_UNSTARTED : DIRTY_RATE_MEASURED;
	if (code < 0)
		snprintf(rate->info.error, sizeof(rate->info.error), "%s", error_text(err));
	error_free(&err);
	published_put(&rate->published, &rate->info);
	pthread_mutex_lock(&rate->lock);
	rate->busy = false;
	pthread_mutex_unlock(&rate->lock);
	return NULL;
}

static const char *const mode_names[] = {"page-sampling", "dirty-ring", "dirty-bitmap"};

static int check(struct machine *machine, const struct dirty_rate_request *request,
		 struct error **err)
{
	bool ring = machine->config.dirty.kind == KVM_DIRTY_RING;

	if (!machine->built)
		return error_set(err, -ENODEV, "the guest has not arrived here yet");
	if (request->time_us < DIRTY_RATE_MIN_US || request->time_us > DIRTY_RATE_MAX_US)
		return error_set(err, -ERANGE, "calc-time is out of range[%u, %u] (milliseconds)",
				 DIRTY_RATE_MIN_US / 1000, DIRTY_RATE_MAX_US / 1000);
	if (request->sample_given && request->mode != DIRTY_RATE_SAMPLING)
		return error_set(err, -EINVAL, "sample-pages is used only in page-sampling mode");
	if (request->sample_pages < DIRTY_RATE_MIN_SAMPLE ||
	    request->sample_pages > DIRTY_RATE_MAX_SAMPLE)
		return error_set(err, -ERANGE, "sample-pages is out of range[%u, %u]",
				 DIRTY_RATE_MIN_SAMPLE, DIRTY_RATE_MAX_SAMPLE);
	if ((request->mode == DIRTY_RATE_RING && !ring) ||
	    (request->mode == DIRTY_RATE_BITMAP && ring))
		return error_set(err, -EOPNOTSUPP,
				 "mode %s is not enabled, use other method instead: this guest "
				 "was started %s --dirty-ring",
				 mode_names[request->mode], ring ? "with" : "without");
	return 0;
}

static int start_locked(struct dirty_rate *rate, const struct dirty_rate_request *request,
			struct error **err)
{
	int code;

	if (rate->busy)
		return error_set(err, -EBUSY, "still in measuring, try later");
	if (rate->started)
		pthread_join(rate->thread, NULL);
	rate->started = false;
	rate->request = *request;
	rate->info = (struct dirty_rate_info){
		.status = DIRTY_RATE_MEASURING,
		.mode = request->mode,
		.start_time_s = machine_realtime_us() / 1000000,
		.time_us = request->time_us,
		.sample_pages = request->sample_pages,
	};
	published_put(&rate->published, &rate->info);
	code = pthread_create(&rate->thread, NULL, measure_thread, rate);
	if (code != 0) {
		rate->info.status = DIRTY_RATE_UNSTARTED;
		published_put(&rate->published, &rate->info);
		return error_set_errno(err, -code, "cannot start the thread that measures");
	}
	pthread_setname_np(rate->thread, "dirty rate");
	rate->busy = rate->started = true;
	return 0;
}

int machine_calc_dirty_rate(struct machine *machine, const struct dirty_rate_request *request,
			    struct error **err)
{
	struct dirty_rate *rate = machine->dirty_rate;
	int code;

	pthread_mutex_lock(&machine->lock);
	code = check(machine, request, err);
	if (code == 0) {
		pthread_mutex_lock(&rate->lock);
		code = start_locked(rate, request, err);
		pthread_mutex_unlock(&rate->lock);
	}
	pthread_mutex_unlock(&machine->lock);
	return code;
}

void machine_query_dirty_rate(struct machine *machine, struct dirty_rate_info *info)
{
	published_get(&machine->dirty_rate->published, info);
}

void dirty_rate_stop(struct machine *machine)
{
	struct dirty_rate *rate = machine->dirty_rate;

	if (!rate)
		return;
	pthread_mutex_lock(&rate->lock);
	rate->quit = true;
	pthread_cond_signal(&rate->wake);
	pthread_mutex_unlock(&rate->lock);
	if (rate->started)
		pthread_join(rate->thread, NULL);
	published_free(&rate->published);
	pthread_mutex_destroy(&rate->lock);
	pthread_cond_destroy(&rate->wake);
	free(rate);
	machine->dirty_rate = NULL;
}
