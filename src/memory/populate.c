/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All ranges are cut into steps that end on 2 MiB boundaries, so that no two workers fault the
 * same huge page; a worker takes the next step by one atomic addition. A step is well below the
 * 64 MiB allowed: whoever waits for the memory-map lock, or for a cancel, waits for one step.
 */
#include "memory/populate.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/parse.h"
#include "memory/ram.h"

/* Linux 5.14; the headers may be older. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define POPULATE_STEP        (UINT64_C(16) << 20)
#define POPULATE_STEP_MIN    (UINT64_C(2) << 20)
#define POPULATE_MAX_THREADS 8u

struct populate {
	struct populate_range *ranges;
	uint64_t *first_step; /* of each range, and one more: the number of all steps */
	unsigned int count, threads;
	uint64_t step, total;
	_Atomic(uint64_t) cursor; /* next step to take */
	_Atomic(uint64_t) done;   /* bytes */
	_Atomic(bool) cancelled;
	_Atomic(int) result; /* first error; whoever set it owns `error` until joined */
	struct error *error;
	bool joined;
	pthread_t workers[POPULATE_MAX_THREADS];
};

static uint64_t round_down(uint64_t value, uint64_t to)
{
	return value - value % to;
}

/* Steps of a range: the grid of step-sized cells that it touches. */
static uint64_t range_steps(const struct populate_range *range, uint64_t step)
{
	uint64_t start = (uintptr_t)range->hva;

	if (!range->size)
		return 0;
	return (round_down(start + range->size - 1, step) - round_down(start, step)) / step + 1;
}

static struct populate_range populate_step_range(const struct populate *job, uint64_t index)
{
	unsigned int low = 0, high = job->count;
	uint64_t start, end, cell;

	/* The last range whose first step is not after index. */
	while (high - low > 1) {
		unsigned int middle = low + (high - low) / 2;

		if (job->first_step[middle] <= index)
			low = middle;
		else
			high = middle;
	}
	start = (uintptr_t)job->ranges[low].hva;
	end = start + job->ranges[low].size;
	cell = round_down(start, job->step) + (index - job->first_step[low]) * job->step;
	if (cell > start)
		start = cell;
	if (cell + job->step < end)
		end = cell + job->step;
	return (struct populate_range){(uint8_t *)start, end - start};
}

static void populate_fail(struct populate *job, const struct populate_range *range, int code)
{
	int expected = 0;
	char text[32];

	if (!atomic_compare_exchange_strong(&job->result, &expected, code))
		return;
	error_set_errno(&job->error, code, "cannot populate %s of guest memory",
			format_size(text, sizeof(text), range->size));
}

static void *populate_work(void *data)
{
	struct populate *job = data;

	while (!atomic_load(&job->cancelled) && !atomic_load(&job->result)) {
		uint64_t index = atomic_fetch_add(&job->cursor, 1);
		struct populate_range range;
		int code;

		if (index >= job->first_step[job->count])
			break;
		range = populate_step_range(job, index);
		do
			code = madvise(range.hva, range.size, MADV_POPULATE_WRITE) < 0 ? -errno : 0;
		while (code == -EINTR);
		if (code < 0) {
			populate_fail(job, &range, code);
			break;
		}
		atomic_fetch_add(&job->done, range.size);
	}
	return NULL;
}

static unsigned int usable_cpus(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return 1;
	return (unsigned int)CPU_COUNT(&set);
}

/* Signals are the business of other threads; a populate is not to be interrupted by them. */
static int populate_start_workers(struct populate *job, unsigned int threads, struct error **err)
{
	sigset_t all, before;
	int code = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (job->threads < threads && code == 0) {
		code = pthread_create(&job->workers[job->threads], NULL, populate_work, job);
		if (code == 0)
			pthread_setname_np(job->workers[job->threads++], "populate");
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	/* Fewer workers than wished for still do the whole job. */
	if (code && !job->threads)
		return error_set_errno(err, -code, "cannot start a thread to populate memory");
	return 0;
}

static int populate_check(const struct populate_range *ranges, unsigned int count,
			  struct error **err)
{
	/* No bytes are asked for: the call only says whether the kernel knows the advice. */
	if (madvise(NULL, 0, MADV_POPULATE_WRITE) < 0)
		return error_set(err, -EOPNOTSUPP,
				 "this host's kernel cannot populate memory ahead of use "
				 "(MADV_POPULATE_WRITE, Linux 5.14 or later)");
	for (unsigned int i = 0; i < count; i++)
		if ((uintptr_t)ranges[i].hva % RAM_PAGE_SIZE || ranges[i].size % RAM_PAGE_SIZE)
			return error_set(err, -EINVAL,
					 "cannot populate %llu bytes at %p: not whole pages of %u "
					 "bytes",
					 (unsigned long long)ranges[i].size, (void *)ranges[i].hva,
					 RAM_PAGE_SIZE);
	return 0;
}

/* Sets total, step and first_step. Small jobs get small steps, so that all workers have a share. */
static void populate_plan(struct populate *job, unsigned int threads)
{
	for (unsigned int i = 0; i < job->count; i++)
		job->total += job->ranges[i].size;
	job->step = POPULATE_STEP;
	while (job->step > POPULATE_STEP_MIN && job->total / job->step < threads * 8u)
		job->step /= 2;
	for (unsigned int i = 0; i < job->count; i++)
		job->first_step[i + 1] =
			job->first_step[i] + range_steps(&job->ranges[i], job->step);
}

int populate_start(struct populate **out, const struct populate_range *ranges, unsigned int count,
		   unsigned int threads, struct error **err)
{
	int result = populate_check(ranges, count, err);
	struct populate *job;

	if (result < 0)
		return result;
	job = calloc(1, sizeof(*job));
	if (!job)
		return error_set(err, -ENOMEM, "out of memory");
	job->count = count;
	job->ranges = calloc(count + 1u, sizeof(*job->ranges));
	job->first_step = calloc(count + 1u, sizeof(*job->first_step));
	if (!job->ranges || !job->first_step) {
		populate_free(job);
		return error_set(err, -ENOMEM, "out of memory");
	}
	if (count)
		memcpy(job->ranges, ranges, count * sizeof(*ranges));
	if (threads == 0)
		threads = usable_cpus();
	if (threads > POPULATE_MAX_THREADS)
		threads = POPULATE_MAX_THREADS;
	populate_plan(job, threads);
	if (job->first_step[count] < threads)
		threads = (unsigned int)job->first_step[count];
	result = populate_start_workers(job, threads, err);
	if (result < 0) {
		populate_free(job);
		return result;
	}
	*out = job;
	return 0;
}

uint64_t populate_done_bytes(const struct populate *job)
{
	return atomic_load(&job->done);
}

bool populate_failed(const struct populate *job)
{
	return atomic_load(&job->result) < 0;
}

uint64_t populate_total_bytes(const struct populate *job)
{
	return job->total;
}

void populate_cancel(struct populate *job)
{
	atomic_store(&job->cancelled, true);
}

static void populate_join(struct populate *job)
{
	if (job->joined)
		return;
	for (unsigned int i = 0; i < job->threads; i++)
		pthread_join(job->workers[i], NULL);
	job->joined = true;
}

int populate_wait(struct populate *job, struct error **err)
{
	int result;

	populate_join(job);
	result = atomic_load(&job->result);
	if (result < 0)
		return error_set(err, result, "%s", error_text(job->error));
	if (populate_done_bytes(job) < job->total)
		return error_set(err, -ECANCELED, "populating memory was cancelled");
	return 0;
}

void populate_free(struct populate *job)
{
	if (!job)
		return;
	populate_cancel(job);
	populate_join(job);
	error_free(&job->error);
	free(job->ranges);
	free(job->first_step);
	free(job);
}
