/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine and a migration engine that only pretend, so that the control layer is tested on its
 * own. The URI says what a move does: "unix:/ok" completes, "unix:/refused" fails the check,
 * "unix:/slow" stays active until it is cancelled, "tcp:bad" is refused at once; with a descriptor
 * (fd:), what is read from it becomes error-desc, which shows that it arrived.
 */
#include "fake_machine.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "machine/dirty_rate.h"
#include "machine/throttle.h"

struct migration {
	struct machine *machine;
	struct migration_info info;
	struct migration_parameters parameters;
	struct migration_capabilities capabilities;
	unsigned int delay_us;
	bool cancel, active, busy;
	pthread_t thread;
	bool thread_made;
};

struct machine {
	pthread_mutex_t lock;
	struct machine_config config;
	machine_listener *listener;
	void *opaque;
	struct machine_status status;
	struct migration migration;
	struct dirty_rate_info rate;
	uint64_t limits[2];
};

static const char *const state_names[] = {
	"prelaunch",      "inmigrate",   "running",  "paused",
	"finish-migrate", "postmigrate", "shutdown", "internal-error",
};
static const char *const status_names[] = {
	"none",      "setup",  "active",     "pre-switchover", "device",
	"completed", "failed", "cancelling", "cancelled",
};
static const char *const phase_names[] = {
	"none", "connect", "check", "scan", "rounds", "ready", "switchover", "in-doubt", "done",
};

const char *machine_state_name(enum machine_state state)
{
	return state_names[state];
}

const char *migration_status_name(enum migration_status status)
{
	return status_names[status];
}

const char *migration_phase_name(enum migration_phase phase)
{
	return phase_names[phase];
}

void fake_machine_emit(struct machine *m, enum machine_event_type type, uint64_t value, bool guest,
		       const char *reason)
{
	struct machine_event event = {
		.type = type, .value = value, .guest = guest, .reason = reason};
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	event.realtime_us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
	if (m->listener)
		m->listener(m->opaque, &event);
}

int machine_create(struct machine **out, const struct machine_config *config,
		   machine_listener *listener, void *opaque, struct error **err)
{
	struct machine *m = calloc(1, sizeof(*m));

	pthread_mutex_init(&m->lock, NULL);
	m->config = *config;
	m->listener = listener;
	m->opaque = opaque;
	m->status.state = config->incoming ? MACHINE_INMIGRATE : MACHINE_PAUSED;
	m->status.cpus = config->cpus;
	m->status.memory = config->memory;
	for (unsigned int i = 0; i < config->cpus; i++)
		m->status.vcpu_tid[i] = (pid_t)(1000 + i);
	m->migration.machine = m;
	m->migration.parameters = (struct migration_parameters){
		.downtime_limit_ms = 300,
		.throttle_trigger_threshold = 50,
		.cpu_throttle_initial = 20,
		.cpu_throttle_increment = 10,
		.max_cpu_throttle = 99,
		.switchover_timeout_ms = 5000,
	};
	m->migration.capabilities.return_path = true;
	*out = m;
	return 0;
}

void machine_destroy(struct machine *m)
{
	m->migration.cancel = true;
	if (m->migration.thread_made)
		pthread_join(m->migration.thread, NULL);
	pthread_mutex_destroy(&m->lock);
	free(m);
}

/* Waits as a real one does for its vCPUs. */
static int fake_set_state(struct machine *m, enum machine_state state,
			  enum machine_event_type event)
{
	bool changed;

	usleep(30000);
	pthread_mutex_lock(&m->lock);
	changed = m->status.state != state;
	m->status.state = state;
	m->status.running = state == MACHINE_RUNNING;
	pthread_mutex_unlock(&m->lock);
	if (changed)
		fake_machine_emit(m, event, 0, false, NULL);
	return 0;
}

int machine_stop(struct machine *m, struct error **err)
{
	return fake_set_state(m, MACHINE_PAUSED, MACHINE_EVENT_STOP);
}

int machine_cont(struct machine *m, struct error **err)
{
	if (m->status.state == MACHINE_POSTMIGRATE)
		return error_set(err, -EPERM, "the guest runs elsewhere");
	return fake_set_state(m, MACHINE_RUNNING, MACHINE_EVENT_RESUME);
}

int machine_reset(struct machine *m, struct error **err)
{
	usleep(30000);
	fake_machine_emit(m, MACHINE_EVENT_RESET, 0, false, "host-qmp-system-reset");
	return 0;
}

int machine_powerdown(struct machine *m, struct error **err)
{
	fake_machine_emit(m, MACHINE_EVENT_POWERDOWN, 0, false, NULL);
	return 0;
}

void machine_quit(struct machine *m, const char *reason)
{
	fake_machine_emit(m, MACHINE_EVENT_SHUTDOWN, 0, false, reason);
	fake_machine_emit(m, MACHINE_EVENT_EXIT, 0, false, reason);
}

void machine_query(struct machine *m, struct machine_status *status)
{
	pthread_mutex_lock(&m->lock);
	*status = m->status;
	pthread_mutex_unlock(&m->lock);
}

const struct machine_config *machine_get_config(const struct machine *m)
{
	return &m->config;
}

struct migration *machine_migration(struct machine *m)
{
	return &m->migration;
}

static void fake_status(struct migration *m, enum migration_status status)
{
	pthread_mutex_lock(&m->machine->lock);
	m->info.status = status;
	m->info.last_progress_us = clock_us();
	m->info.total_time_us = clock_us() - m->info.start_us;
	m->active = m->delay_us && (status == MIGRATION_SETUP || status == MIGRATION_ACTIVE);
	if (status == MIGRATION_COMPLETED && m->delay_us) {
		m->machine->status.state = MACHINE_POSTMIGRATE;
		m->machine->status.running = false;
	}
	pthread_mutex_unlock(&m->machine->lock);
	fake_machine_emit(m->machine, MACHINE_EVENT_MIGRATION, status, false, NULL);
}

/* 250 MB in two rounds, in a second or so. */
static void *fake_move(void *opaque)
{
	struct migration *m = opaque;
	bool slow = m->delay_us > 1000000;

	fake_status(m, MIGRATION_ACTIVE);
	m->info.phase = MIGRATION_PHASE_ROUNDS;
	for (unsigned int i = 0; i < 100 && !m->cancel; i++) {
		usleep(slow ? 50000 : m->delay_us / 100);
		pthread_mutex_lock(&m->machine->lock);
		m->info.ram_transferred += 2500000;
		m->info.ram_remaining = m->info.ram_total - m->info.ram_transferred;
		m->info.total_time_us = clock_us() - m->info.start_us;
		pthread_mutex_unlock(&m->machine->lock);
		if (slow)
			i = 0;
		if (i % 50 == 49)
			fake_machine_emit(m->machine, MACHINE_EVENT_MIGRATION_PASS, i / 50 + 1,
					  false, NULL);
	}
	m->info.phase = MIGRATION_PHASE_DONE;
	m->info.account = (struct switchover_account){40, 30, 200, 60, 70, 50, 10, 460};
	m->info.downtime_us = 460;
	fake_status(m, m->cancel        ? MIGRATION_CANCELLED
		       : *m->info.error ? MIGRATION_FAILED
					: MIGRATION_COMPLETED);
	usleep(20000); /* tidies up */
	m->busy = false;
	return NULL;
}

int migration_start(struct migration *m, const struct migration_request *request,
		    struct error **err)
{
	char text[64] = "";

	if (!strcmp(request->uri, "tcp:bad"))
		return error_set(err, -EINVAL, "tcp:bad: no port (write tcp:HOST:PORT)");
	if (!strncmp(request->uri, "exec:", 5) && !request->allow_exec)
		return error_set(err, -EPERM, "exec: needs --allow-exec");
	if (m->busy) {
		if (request->fd >= 0)
			close(request->fd);
		return error_set(err, -EBUSY, "a migration is under way already");
	}
	if (m->thread_made)
		pthread_join(m->thread, NULL);
	m->busy = true;
	m->cancel = false;
	m->delay_us = request->check_only ? 0 : 300000;
	memset(&m->info, 0, sizeof(m->info));
	m->info.ram_total = 300000000;
	m->info.start_us = clock_us();
	m->info.converging = true;
	m->info.bandwidth_bps = 250000000;
	m->info.dirty_sync_count = 2;
	m->info.expected_downtime_us = 512;
	if (request->fd >= 0) {
		if (read(request->fd, text, sizeof(text) - 1) < 0)
			text[0] = '\0';
		close(request->fd);
		snprintf(m->info.error, sizeof(m->info.error), "%s", text);
	}
	if (!strcmp(request->uri, "unix:/refused"))
		snprintf(m->info.error, sizeof(m->info.error),
			 "memory.size: the source has 1 GiB, this machine 512 MiB");
	if (!strcmp(request->uri, "unix:/slow"))
		m->delay_us = 2000000;
	fake_status(m, MIGRATION_SETUP);
	m->thread_made = !pthread_create(&m->thread, NULL, fake_move, m);
	return 0;
}

int migration_incoming(struct migration *m, const struct migration_request *request,
		       struct error **err)
{
	m->info.incoming = true;
	m->info.status = MIGRATION_SETUP;
	m->active = true;
	snprintf(m->info.socket_address, sizeof(m->info.socket_address), "%s", request->uri);
	return 0;
}

int migration_cancel(struct migration *m)
{
	m->cancel = true;
	return 0;
}

int migration_continue(struct migration *m, struct error **err)
{
	return 0;
}

int migration_resolve(struct migration *m, bool owner_here, struct error **err)
{
	return error_set(err, -EINVAL, "the migration is not in doubt");
}

bool migration_active(struct migration *m)
{
	bool active;

	pthread_mutex_lock(&m->machine->lock);
	active = m->active;
	pthread_mutex_unlock(&m->machine->lock);
	return active;
}

void migration_query(struct migration *m, struct migration_info *info)
{
	pthread_mutex_lock(&m->machine->lock);
	*info = m->info;
	pthread_mutex_unlock(&m->machine->lock);
}

void migration_get_parameters(struct migration *m, struct migration_parameters *parameters)
{
	*parameters = m->parameters;
}

int migration_set_parameters(struct migration *m, const struct migration_parameters *parameters,
			     struct error **err)
{
	m->parameters = *parameters;
	return 0;
}

void migration_get_capabilities(struct migration *m, struct migration_capabilities *capabilities)
{
	*capabilities = m->capabilities;
}

int migration_set_capabilities(struct migration *m,
			       const struct migration_capabilities *capabilities,
			       struct error **err)
{
	if (!capabilities->return_path)
		return error_set(err, -EINVAL, "return-path cannot be switched off");
	m->capabilities = *capabilities;
	return 0;
}

int machine_calc_dirty_rate(struct machine *m, const struct dirty_rate_request *request,
			    struct error **err)
{
	if (m->rate.status == DIRTY_RATE_MEASURING)
		return error_set(err, -EBUSY, "still in measuring, try later");
	m->rate = (struct dirty_rate_info){
		.status = request->time_us < 1000000 ? DIRTY_RATE_MEASURED : DIRTY_RATE_MEASURING,
		.mode = request->mode,
		.rate = 123,
		.start_time_s = 42,
		.time_us = request->time_us,
		.sample_pages = request->sample_pages,
		.vcpu_count = request->mode == DIRTY_RATE_RING ? 2 : 0,
		.vcpu_rate = {100, 23},
	};
	return 0;
}

void machine_query_dirty_rate(struct machine *m, struct dirty_rate_info *info)
{
	*info = m->rate;
}

int machine_set_dirty_limit(struct machine *m, uint32_t vcpu, uint64_t rate, struct error **err)
{
	if (vcpu != VCPU_ALL && vcpu > 1)
		return error_set(err, -EINVAL, "incorrect cpu index specified: %u", vcpu);
	for (uint32_t i = 0; i < 2; i++)
		if (vcpu == VCPU_ALL || vcpu == i)
			m->limits[i] = rate;
	return 0;
}

unsigned int machine_query_dirty_limit(struct machine *m, struct vcpu_limit *limits,
				       unsigned int most)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < 2; i++)
		if (m->limits[i])
			limits[count++] = (struct vcpu_limit){i, m->limits[i], 7};
	return count;
}
