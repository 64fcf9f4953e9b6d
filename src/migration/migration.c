/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's public face: its thread, its parameters, what it publishes. */
#include "migration/migration.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "migration/engine.h"

static const char *const status_names[] = {
	[MIGRATION_NONE] = "none",           [MIGRATION_SETUP] = "setup",
	[MIGRATION_ACTIVE] = "active",       [MIGRATION_PRE_SWITCHOVER] = "pre-switchover",
	[MIGRATION_DEVICE] = "device",       [MIGRATION_COMPLETED] = "completed",
	[MIGRATION_FAILED] = "failed",       [MIGRATION_CANCELLING] = "cancelling",
	[MIGRATION_CANCELLED] = "cancelled",
};

const char *migration_status_name(enum migration_status status)
{
	return status_names[status];
}

static const char *const phase_names[] = {
	[MIGRATION_PHASE_NONE] = "none",
	[MIGRATION_PHASE_CONNECT] = "connect",
	[MIGRATION_PHASE_CHECK] = "check",
	[MIGRATION_PHASE_SCAN] = "scan",
	[MIGRATION_PHASE_ROUNDS] = "rounds",
	[MIGRATION_PHASE_READY] = "ready",
	[MIGRATION_PHASE_SWITCHOVER] = "switchover",
	[MIGRATION_PHASE_IN_DOUBT] = "in-doubt",
	[MIGRATION_PHASE_DONE] = "done",
};

const char *migration_phase_name(enum migration_phase phase)
{
	return phase_names[phase];
}

static void *engine_thread(void *opaque)
{
	struct migration *m = opaque;

	pthread_setname_np(pthread_self(), "migration");
	for (;;) {
		enum engine_job job;

		pthread_mutex_lock(&m->lock);
		while (m->job == JOB_NONE)
			pthread_cond_wait(&m->wake, &m->lock);
		job = m->job;
		if (job != JOB_QUIT)
			m->job = JOB_NONE;
		pthread_mutex_unlock(&m->lock);
		if (job == JOB_QUIT)
			return NULL;
		/* submit() has set the status, on a thread where nobody may be called back. */
		if (m->callbacks.status_changed && !m->check_only)
			m->callbacks.status_changed(m->callbacks_opaque, MIGRATION_SETUP);
		if (job == JOB_OUTGOING)
			source_run(m);
		else
			destination_run(m);
	}
}

int migration_create(struct migration **result, const struct migration_ops *ops, void *ops_opaque,
		     const struct migration_callbacks *callbacks, void *callbacks_opaque,
		     struct error **err)
{
	struct migration *m = calloc(1, sizeof(*m));
	int status;

	if (!m)
		return error_set(err, -ENOMEM, "out of memory");
	m->ops = ops;
	m->opaque = ops_opaque;
	m->callbacks = *callbacks;
	m->callbacks_opaque = callbacks_opaque;
	m->parameters = (struct migration_parameters){.downtime_limit_ms = 300,
						      .throttle_trigger_threshold = 50,
						      .cpu_throttle_initial = 20,
						      .cpu_throttle_increment = 10,
						      .max_cpu_throttle = 99,
						      .switchover_timeout_ms = 5000};
	m->capabilities.return_path = true;
	m->timeouts = ENGINE_TIMEOUTS;
	m->resolve_asked = -1;
	m->uri_fd = -1;
	m->channel.fd = -1;
	m->listener = (struct listener){.fd = -1, .given_fd = -1};
	pthread_mutex_init(&m->lock, NULL);
	pthread_cond_init(&m->wake, NULL);
	m->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	m->body = malloc(WIRE_MAX_BODY);
	status = m->cancel_fd < 0 ? -errno : !m->body ? -ENOMEM : 0;
	if (status == 0)
		status = published_init(&m->published, sizeof(m->info));
	if (status == 0)
		status = -pthread_create(&m->thread, NULL, engine_thread, m);
	if (status < 0) {
		if (m->cancel_fd >= 0)
			close(m->cancel_fd);
		published_free(&m->published);
		free(m->body);
		free(m);
		return error_set_errno(err, status, "cannot set up the migration engine");
	}
	*result = m;
	return 0;
}

void migration_destroy(struct migration *m)
{
	if (!m)
		return;
	pthread_mutex_lock(&m->lock);
	m->job = JOB_QUIT;
	m->cancelled = true;
	pthread_cond_broadcast(&m->wake);
	pthread_mutex_unlock(&m->lock);
	eventfd_write(m->cancel_fd, 1);
	pthread_join(m->thread, NULL);
	listener_close(&m->listener);
	if (m->uri_fd >= 0)
		close(m->uri_fd);
	close(m->cancel_fd);
	published_free(&m->published);
	free(m->body);
	free(m->uri);
	pthread_mutex_destroy(&m->lock);
	pthread_cond_destroy(&m->wake);
	free(m);
}

/* With the lock held: takes the request over and wakes the thread. */
static int submit(struct migration *m, const struct migration_request *request, enum engine_job job,
		  struct error **err)
{
	char *uri = strdup(request->uri);
	eventfd_t old;

	if (!uri)
		return error_set(err, -ENOMEM, "out of memory");
	free(m->uri);
	m->uri = uri;
	m->uri_fd = job == JOB_OUTGOING ? request->fd : -1;
	m->check_only = request->check_only;
	m->insecure = request->insecure;
	m->allow_exec = request->allow_exec;
	m->cancelled = false;
	m->continue_asked = false;
	m->resolve_asked = -1;
	eventfd_read(m->cancel_fd, &old);
	m->info = (struct migration_info){
		.status = MIGRATION_SETUP,
		.phase = MIGRATION_PHASE_CONNECT,
		.incoming = job == JOB_INCOMING,
		.converging = true,
		.start_us = clock_us(),
		.last_progress_us = clock_us(),
	};
	if (job == JOB_INCOMING)
		memcpy(m->info.socket_address, m->listener.address, sizeof(m->info.socket_address));
	published_put(&m->published, &m->info);
	m->busy = true;
	m->job = job;
	pthread_cond_broadcast(&m->wake);
	return 0;
}

static int start(struct migration *m, const struct migration_request *request, enum engine_job job,
		 struct error **err)
{
	int status = channel_check_uri(request, job == JOB_INCOMING, err);

	if (status == 0) {
		pthread_mutex_lock(&m->lock);
		if (m->busy)
			status = error_set(err, -EBUSY, "a migration is under way already");
		else if (job == JOB_INCOMING)
			status = listener_open(&m->listener, request, err);
		if (status == 0) {
			status = submit(m, request, job, err);
			if (status < 0 && job == JOB_INCOMING) {
				m->listener.given_fd = -1; /* closed below */
				listener_close(&m->listener);
			}
		}
		pthread_mutex_unlock(&m->lock);
	}
	if (status < 0 && request->fd >= 0)
		close(request->fd);
	return status;
}

int migration_start(struct migration *m, const struct migration_request *request,
		    struct error **err)
{
	return start(m, request, JOB_OUTGOING, err);
}

int migration_incoming(struct migration *m, const struct migration_request *request,
		       struct error **err)
{
	return start(m, request, JOB_INCOMING, err);
}

int migration_cancel(struct migration *m)
{
	pthread_mutex_lock(&m->lock);
	/* One that has ended stays as it ended, while its clean-up goes on. */
	if (m->busy && m->info.phase != MIGRATION_PHASE_DONE) {
		m->cancelled = true;
		if (!m->info.in_doubt) {
			m->info.status = MIGRATION_CANCELLING;
			published_put(&m->published, &m->info);
		}
		eventfd_write(m->cancel_fd, 1);
		pthread_cond_broadcast(&m->wake);
	}
	pthread_mutex_unlock(&m->lock);
	return 0;
}

int migration_continue(struct migration *m, struct error **err)
{
	int status = 0;

	pthread_mutex_lock(&m->lock);
	if (m->info.status != MIGRATION_PRE_SWITCHOVER)
		status = error_set(err, -EINVAL, "the migration is not in pre-switchover but %s",
				   migration_status_name(m->info.status));
	m->continue_asked = status == 0;
	pthread_cond_broadcast(&m->wake);
	pthread_mutex_unlock(&m->lock);
	return status;
}

int migration_resolve(struct migration *m, bool owner_here, struct error **err)
{
	int status = 0;

	pthread_mutex_lock(&m->lock);
	if (!m->info.in_doubt)
		status = error_set(err, -EINVAL, "no migration is in doubt");
	else
		m->resolve_asked = owner_here;
	pthread_cond_broadcast(&m->wake);
	pthread_mutex_unlock(&m->lock);
	return status;
}

bool migration_active(struct migration *m)
{
	bool busy;

	pthread_mutex_lock(&m->lock);
	busy = m->busy && !m->check_only;
	pthread_mutex_unlock(&m->lock);
	return busy;
}

void migration_query(struct migration *m, struct migration_info *info)
{
	published_get(&m->published, info);
	if (info->start_us && info->status != MIGRATION_COMPLETED &&
	    info->status != MIGRATION_FAILED && info->status != MIGRATION_CANCELLED)
		info->total_time_us = clock_us() - info->start_us;
}

void engine_get_parameters(struct migration *m, struct migration_parameters *parameters)
{
	pthread_mutex_lock(&m->lock);
	*parameters = m->parameters;
	pthread_mutex_unlock(&m->lock);
}

void migration_get_parameters(struct migration *m, struct migration_parameters *parameters)
{
	engine_get_parameters(m, parameters);
}

static bool is_percent(uint64_t value, uint64_t most)
{
	return value >= 1 && value <= most;
}

int migration_set_parameters(struct migration *m, const struct migration_parameters *parameters,
			     struct error **err)
{
	if (parameters->downtime_limit_ms > 2000000)
		return error_set(err, -EINVAL, "downtime-limit is at most 2000000 ms");
	if (parameters->max_bandwidth && parameters->max_bandwidth < 4096)
		return error_set(err, -EINVAL,
				 "max-bandwidth is 0 (unlimited) or at least 4096 bytes a second");
	if (parameters->switchover_timeout_ms < 100 || parameters->switchover_timeout_ms > 600000)
		return error_set(err, -EINVAL, "x-switchover-timeout is 100 to 600000 ms");
	if (!is_percent(parameters->throttle_trigger_threshold, 100) ||
	    !is_percent(parameters->cpu_throttle_initial, 99) ||
	    !is_percent(parameters->cpu_throttle_increment, 99) ||
	    !is_percent(parameters->max_cpu_throttle, 99))
		return error_set(
			err, -EINVAL,
			"cpu-throttle-initial, cpu-throttle-increment and max-cpu-throttle "
			"are 1 to 99 percent, throttle-trigger-threshold 1 to 100");
	if (parameters->max_cpu_throttle < parameters->cpu_throttle_initial)
		return error_set(err, -EINVAL,
				 "max-cpu-throttle (%u) is less than cpu-throttle-initial (%u)",
				 (unsigned int)parameters->max_cpu_throttle,
				 (unsigned int)parameters->cpu_throttle_initial);
	pthread_mutex_lock(&m->lock);
	m->parameters = *parameters;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

void migration_get_capabilities(struct migration *m, struct migration_capabilities *capabilities)
{
	pthread_mutex_lock(&m->lock);
	*capabilities = m->capabilities;
	pthread_mutex_unlock(&m->lock);
}

int migration_set_capabilities(struct migration *m,
			       const struct migration_capabilities *capabilities,
			       struct error **err)
{
	int status = 0;

	pthread_mutex_lock(&m->lock);
	if (m->busy)
		status = error_set(err, -EBUSY,
				   "capabilities cannot change while a migration is under way");
	else if (!capabilities->return_path)
		status = error_set(err, -EINVAL, "return-path cannot be switched off");
	else
		m->capabilities = *capabilities;
	pthread_mutex_unlock(&m->lock);
	return status;
}
