/* SPDX-License-Identifier: Apache-2.0 */
#include "machine/throttle.h"

#include <errno.h>
#include <stdlib.h>
#include "base/clock.h"
#include "machine/internal.h"

/* How long a throttled vCPU runs between two sleeps. */
#define RUN_US 10000u
/* How often a vCPU's rate is measured and its limit applied. */
#define MEASURE_US 250000u
/* Of a thousand: a vCPU always gets some time. */
#define MOST 990u

struct limited {
	bool set;
	uint64_t limit, rate; /* MiB a second */
	uint64_t pages;       /* at the last measurement */
	unsigned int share;   /* of a thousand, that it sleeps */
};

struct throttle {
	struct machine *machine;
	pthread_t thread;
	bool started, quit;
	pthread_mutex_t watch_lock; /* subscribing, and a measurement; before `lock` */
	pthread_mutex_t lock;       /* held briefly */
	pthread_cond_t wake;
	unsigned int all; /* of a thousand: auto-converge */
	unsigned int limited_count;
	struct limited vcpus[MACHINE_MAX_VCPUS];
	uint64_t due_us[MACHINE_MAX_VCPUS];
	uint64_t measured_us;
	/* Makes KVM list written pages; what it lists is only counted. */
	struct dirty_subscriber subscriber;
	struct page_map maps[RAM_MAX_REGIONS];
};

int throttle_create(struct machine *machine, struct error **err)
{
	struct throttle *throttle = calloc(1, sizeof(*throttle));
	pthread_condattr_t attributes;

	if (!throttle)
		return error_set(err, -ENOMEM, "no memory for the machine");
	throttle->machine = machine;
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_mutex_init(&throttle->watch_lock, NULL);
	pthread_mutex_init(&throttle->lock, NULL);
	pthread_cond_init(&throttle->wake, &attributes);
	pthread_condattr_destroy(&attributes);
	machine->throttle = throttle;
	return 0;
}

static unsigned int share_of(const struct throttle *throttle, unsigned int vcpu)
{
	unsigned int share = throttle->vcpus[vcpu].set ? throttle->vcpus[vcpu].share : 0;

	return share > throttle->all ? share : throttle->all;
}

/*
 * A vCPU that ran for the part f of its time wrote at the measured rate; it is to run for f * limit
 * / rate. More time is given back slowly, so that a rate that varies does not swing.
 */
static void adjust(struct limited *vcpu, uint64_t pages, uint64_t us)
{
	double rate = (double)pages * RAM_PAGE_SIZE / 1048576.0 * 1e6 / (double)us;
	double run = (1000.0 - vcpu->share) / 1000.0, limit = (double)vcpu->limit;

	vcpu->rate = (uint64_t)(rate + 0.5);
	if (rate > limit)
		run *= limit / rate;
	else if (rate < limit * 0.9)
		run *= rate * 1.25 > limit ? limit / rate : 1.25;
	if (run > 1.0)
		run = 1.0;
	vcpu->share = (unsigned int)((1.0 - run) * 1000.0);
	if (vcpu->share > MOST)
		vcpu->share = MOST;
}

static uint64_t pages_written(const struct throttle *throttle, unsigned int vcpu)
{
	return atomic_load(&throttle->machine->vcpus[vcpu].ring.pages);
}

/* Empties the rings (which counts what is in them), then looks at each vCPU's count. */
static void measure(struct throttle *throttle, uint64_t now)
{
	struct machine *machine = throttle->machine;
	uint64_t us = now - throttle->measured_us;

	if (!throttle->subscriber.active)
		return;
	(void)dirty_tracker_harvest(&machine->tracker, &throttle->subscriber, throttle->maps,
				    false);
	for (unsigned int i = 0; i < machine->ram->count; i++)
		page_map_clear_all(&throttle->maps[i]);
	pthread_mutex_lock(&throttle->lock);
	for (unsigned int i = 0; i < machine->vcpu_count; i++) {
		struct limited *vcpu = &throttle->vcpus[i];
		uint64_t pages = pages_written(throttle, i);

		if (vcpu->set && us)
			adjust(vcpu, pages - vcpu->pages, us);
		vcpu->pages = pages;
	}
	throttle->measured_us = now;
	pthread_mutex_unlock(&throttle->lock);
}

/* Sends those to sleep whose turn it is; returns when the next one is due. `lock` held. */
static uint64_t send_to_sleep(struct throttle *throttle, uint64_t now)
{
	struct machine *machine = throttle->machine;
	uint64_t next = now + MEASURE_US;

	for (unsigned int i = 0; i < machine->vcpu_count; i++) {
		unsigned int share = share_of(throttle, i);
		uint64_t sleep_us = (uint64_t)RUN_US * share / (1000 - share);

		if (share == 0)
			continue;
		if (throttle->due_us[i] <= now) {
			kvm_vcpu_sleep(&machine->vcpus[i], sleep_us);
			throttle->due_us[i] = now + sleep_us + RUN_US;
		}
		if (throttle->due_us[i] < next)
			next = throttle->due_us[i];
	}
	return next;
}

static void *throttle_thread(void *opaque)
{
	struct throttle *throttle = opaque;

	pthread_mutex_lock(&throttle->lock);
	while (!throttle->quit) {
		uint64_t now = clock_us(), next;
		struct timespec until;

		if (throttle->all == 0 && throttle->limited_count == 0) {
			pthread_cond_wait(&throttle->wake, &throttle->lock);
			continue;
		}
		if (throttle->limited_count && now - throttle->measured_us >= MEASURE_US) {
			pthread_mutex_unlock(&throttle->lock);
			pthread_mutex_lock(&throttle->watch_lock);
			measure(throttle, now);
			pthread_mutex_unlock(&throttle->watch_lock);
			pthread_mutex_lock(&throttle->lock);
			continue;
		}
		next = send_to_sleep(throttle, now);
		if (throttle->limited_count && throttle->measured_us + MEASURE_US < next)
			next = throttle->measured_us + MEASURE_US;
		until = (struct timespec){.tv_sec = (time_t)(next / 1000000),
					  .tv_nsec = (long)(next % 1000000 * 1000)};
		pthread_cond_timedwait(&throttle->wake, &throttle->lock, &until);
	}
	pthread_mutex_unlock(&throttle->lock);
	return NULL;
}

/* `lock` held. */
static int start_thread(struct throttle *throttle, struct error **err)
{
	int code;

	if (throttle->started)
		return 0;
	code = pthread_create(&throttle->thread, NULL, throttle_thread, throttle);
	if (code != 0)
		return error_set_errno(err, -code, "cannot start the thread that slows vCPUs down");
	pthread_setname_np(throttle->thread, "throttle");
	throttle->started = true;
	return 0;
}

void throttle_set_all(struct machine *machine, unsigned int percent)
{
	struct throttle *throttle = machine->throttle;

	pthread_mutex_lock(&throttle->lock);
	throttle->all = percent * 10 > MOST ? MOST : percent * 10;
	if (throttle->all == 0 || start_thread(throttle, NULL) == 0)
		pthread_cond_signal(&throttle->wake);
	pthread_mutex_unlock(&throttle->lock);
}

void throttle_stop(struct machine *machine)
{
	struct throttle *throttle = machine->throttle;

	if (!throttle)
		return;
	pthread_mutex_lock(&throttle->lock);
	throttle->quit = true;
	pthread_cond_signal(&throttle->wake);
	pthread_mutex_unlock(&throttle->lock);
	if (throttle->started)
		pthread_join(throttle->thread, NULL);
	if (throttle->subscriber.active)
		dirty_tracker_unsubscribe(&machine->tracker, &throttle->subscriber);
	for (unsigned int i = 0; i < RAM_MAX_REGIONS; i++)
		page_map_free(&throttle->maps[i]);
	pthread_mutex_destroy(&throttle->watch_lock);
	pthread_mutex_destroy(&throttle->lock);
	pthread_cond_destroy(&throttle->wake);
	free(throttle);
	machine->throttle = NULL;
}

static int check_limit(struct machine *machine, uint32_t vcpu, struct error **err)
{
	if (machine->config.dirty.kind != KVM_DIRTY_RING)
		return error_set(err, -EOPNOTSUPP,
				 "dirty page limit feature requires KVM with a dirty ring: start "
				 "the guest with --dirty-ring");
	if (!machine->built)
		return error_set(err, -ENODEV, "the guest has not arrived here yet");
	if (vcpu != VCPU_ALL && vcpu >= machine->vcpu_count)
		return error_set(err, -EINVAL,
				 "incorrect cpu index specified: %u, this guest has 0 to %u", vcpu,
				 machine->vcpu_count - 1);
	return 0;
}

static int prepare_maps(struct throttle *throttle, struct error **err)
{
	struct ram *ram = throttle->machine->ram;

	for (unsigned int i = 0; i < ram->count; i++)
		if (!throttle->maps[i].words &&
		    page_map_init(&throttle->maps[i], ram_region_pages(&ram->regions[i])) < 0)
			return error_set(err, -ENOMEM, "no memory for a bitmap of written pages");
	return 0;
}

static int subscribe(struct throttle *throttle, struct error **err)
{
	int code;

	if (throttle->subscriber.active)
		return 0;
	code = prepare_maps(throttle, err);
	return code < 0 ? code
			: dirty_tracker_subscribe(&throttle->machine->tracker,
						  &throttle->subscriber, err);
}

/* With both locks held. */
static void set_limits(struct throttle *throttle, uint32_t vcpu, uint64_t rate)
{
	throttle->limited_count = 0;
	for (unsigned int i = 0; i < throttle->machine->vcpu_count; i++) {
		struct limited *limited = &throttle->vcpus[i];

		if (vcpu == VCPU_ALL || vcpu == i) {
			limited->pages = pages_written(throttle, i);
			limited->share = limited->set && rate ? limited->share : 0;
			limited->set = rate != 0;
			limited->limit = rate;
		}
		throttle->limited_count += limited->set;
	}
	throttle->measured_us = clock_us();
	pthread_cond_signal(&throttle->wake);
}

int machine_set_dirty_limit(struct machine *machine, uint32_t vcpu, uint64_t rate,
			    struct error **err)
{
	struct throttle *throttle = machine->throttle;
	int code;

	pthread_mutex_lock(&machine->lock);
	code = check_limit(machine, vcpu, err);
	pthread_mutex_unlock(&machine->lock);
	if (code < 0)
		return code;
	pthread_mutex_lock(&throttle->watch_lock);
	if (rate)
		code = subscribe(throttle, err);
	pthread_mutex_lock(&throttle->lock);
	if (code == 0)
		code = start_thread(throttle, err);
	if (code == 0)
		set_limits(throttle, vcpu, rate);
	pthread_mutex_unlock(&throttle->lock);
	/* The log is on while there is a limit. */
	if (throttle->limited_count == 0)
		dirty_tracker_unsubscribe(&machine->tracker, &throttle->subscriber);
	pthread_mutex_unlock(&throttle->watch_lock);
	return code;
}

unsigned int machine_query_dirty_limit(struct machine *machine, struct vcpu_limit *limits,
				       unsigned int most)
{
	struct throttle *throttle = machine->throttle;
	unsigned int count = 0;

	pthread_mutex_lock(&throttle->lock);
	for (unsigned int i = 0; i < MACHINE_MAX_VCPUS && count < most; i++)
		if (throttle->vcpus[i].set)
			limits[count++] = (struct vcpu_limit){
				.index = i,
				.limit = throttle->vcpus[i].limit,
				.rate = throttle->vcpus[i].rate,
			};
	pthread_mutex_unlock(&throttle->lock);
	return count;
}
