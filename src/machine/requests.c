/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine's own thread: does what the guest asks for (reset, power-off) and reacts to a vCPU
 * that KVM cannot run, since a vCPU's thread cannot wait for the others.
 */
#include <errno.h>
#include <sys/time.h>
#include "base/log.h"
#include "machine/internal.h"

void machine_request(struct machine *machine, unsigned int request)
{
	kvm_vcpu_halt_current();
	pthread_mutex_lock(&machine->request_lock);
	atomic_fetch_or(&machine->requests, request);
	pthread_cond_signal(&machine->request_wake);
	pthread_mutex_unlock(&machine->request_lock);
}

static bool guest_is_here(const struct machine *machine)
{
	return machine->state == MACHINE_RUNNING || machine->state == MACHINE_PAUSED;
}

/* Stops the guest for good; `lock` held. */
static void power_off(struct machine *machine, const char *reason)
{
	bool running = machine->state == MACHINE_RUNNING;

	(void)machine_stop_vcpus(machine, 0, NULL);
	machine_set_state(machine, MACHINE_SHUTDOWN);
	machine_emit(machine, &(struct machine_event){.type = MACHINE_EVENT_SHUTDOWN,
						      .guest = true,
						      .reason = reason});
	if (running)
		machine_emit_simple(machine, MACHINE_EVENT_STOP);
}

static void shut_down(struct machine *machine, const char *reason)
{
	bool off;

	pthread_mutex_lock(&machine->lock);
	off = guest_is_here(machine);
	if (off)
		power_off(machine, reason);
	pthread_mutex_unlock(&machine->lock);
	if (!off)
		return;
	migration_cancel(machine->migration);
	if (!machine->config.no_shutdown)
		machine_emit_simple(machine, MACHINE_EVENT_EXIT);
}

static void fail(struct machine *machine)
{
	pthread_mutex_lock(&machine->lock);
	if (guest_is_here(machine)) {
		bool running = machine->state == MACHINE_RUNNING;

		(void)machine_stop_vcpus(machine, 0, NULL);
		machine_set_state(machine, MACHINE_INTERNAL_ERROR);
		if (running)
			machine_emit_simple(machine, MACHINE_EVENT_STOP);
	}
	pthread_mutex_unlock(&machine->lock);
	log_error("vCPU %u: %s; the guest is stopped (internal-error)", machine->failed_vcpu->index,
		  machine->failed_vcpu->failure);
	migration_cancel(machine->migration);
}

static void reset(struct machine *machine)
{
	struct error *err = NULL;
	int code = 0;

	pthread_mutex_lock(&machine->lock);
	if (guest_is_here(machine)) {
		code = machine_reset_locked(machine, &err);
		machine_emit(machine, &(struct machine_event){.type = MACHINE_EVENT_RESET,
							      .guest = true,
							      .reason = "guest-reset"});
	}
	pthread_mutex_unlock(&machine->lock);
	if (code < 0)
		log_error("the guest's reset fails: %s", error_text(err));
	error_free(&err);
}

static void *worker(void *opaque)
{
	struct machine *machine = opaque;

	for (;;) {
		unsigned int requests;

		pthread_mutex_lock(&machine->request_lock);
		while ((requests = atomic_exchange(&machine->requests, 0)) == 0)
			pthread_cond_wait(&machine->request_wake, &machine->request_lock);
		pthread_mutex_unlock(&machine->request_lock);

		if (requests & REQUEST_QUIT)
			return NULL;
		if (requests & REQUEST_ERROR)
			fail(machine);
		else if (requests & REQUEST_SHUTDOWN)
			shut_down(machine, "guest-shutdown");
		else if (machine->config.no_reboot)
			shut_down(machine, "guest-reset");
		else
			reset(machine);
	}
}

int machine_worker_start(struct machine *machine, struct error **err)
{
	int code = pthread_create(&machine->worker, NULL, worker, machine);

	if (code != 0)
		return error_set_errno(err, -code, "cannot start the machine's thread");
	pthread_setname_np(machine->worker, "machine");
	machine->worker_started = true;
	return 0;
}

void machine_worker_stop(struct machine *machine)
{
	if (!machine->worker_started)
		return;
	machine_request(machine, REQUEST_QUIT);
	pthread_join(machine->worker, NULL);
	machine->worker_started = false;
}
