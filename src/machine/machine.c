/* SPDX-License-Identifier: Apache-2.0 */
#include "machine/machine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "arch/x86/mptable.h"
#include "base/clock.h"
#include "base/io.h"
#include "machine/internal.h"
#include "machine/owner_path.h"

static int create_locks(struct machine *machine, struct error **err)
{
	int code = published_init(&machine->status, sizeof(struct machine_status));

	pthread_mutex_init(&machine->lock, NULL);
	pthread_mutex_init(&machine->event_lock, NULL);
	pthread_mutex_init(&machine->request_lock, NULL);
	pthread_cond_init(&machine->request_wake, NULL);
	return code < 0 ? error_set(err, code, "no memory for the machine") : 0;
}

/* All that does not wait for a source's description. */
static int prepare(struct machine *machine, struct error **err)
{
	struct machine_config *config = &machine->config;
	int code;

	code = machine_config_check(config, err);
	/* Whoever talks to the guest may connect before it arrives. */
	if (code == 0)
		code = machine_attach_serial(machine, err);
	if (code == 0)
		code = kvm_system_open(&machine->system, err);
	if (code == 0)
		code = x86_cpuid_init(&machine->host_cpuid, &machine->system, "host", err);
	if (code == 0)
		code = boot_read(&machine->boot, config, err);
	if (code == 0 && config->incoming)
		code = x86_probe_open(&machine->probe, &machine->system, err);
	if (code < 0 || config->incoming)
		return code;

	code = machine_config_set_defaults(config, err);
	if (code == 0)
		code = x86_cpuid_init(&machine->cpuid, &machine->system, config->cpu_model, err);
	if (code == 0)
		code = machine_build(machine, err);
	if (code == 0)
		code = machine_load_guest(machine, err);
	if (code == 0) {
		kvm_vcpus_tell(machine->vcpus, machine->vcpu_count, KVM_VCPU_RESET);
		code = kvm_vcpus_wait(machine->vcpus, machine->vcpu_count,
				      clock_us() + MACHINE_STOP_US);
		if (code < 0)
			machine_vcpus_error(machine, code, err);
	}
	return code;
}

int machine_create(struct machine **result, const struct machine_config *config,
		   machine_listener *listener, void *opaque, struct error **err)
{
	struct machine *machine = calloc(1, sizeof(*machine));
	int code;

	*result = NULL;
	if (!machine || machine_config_copy(&machine->config, config) < 0) {
		free(machine);
		return error_set(err, -ENOMEM, "no memory for the machine");
	}
	machine->listener = listener;
	machine->opaque = opaque;
	machine->system.fd = -1;
	machine->vm.fd = -1;
	machine->probe.vm.fd = -1;
	machine->owner.fd = -1;
	machine->state = config->incoming ? MACHINE_INMIGRATE : MACHINE_PRELAUNCH;
	machine->arrive_paused = config->incoming && config->paused;
	code = create_locks(machine, err);
	if (code == 0)
		code = prepare(machine, err);
	if (code == 0)
		code = throttle_create(machine, err);
	if (code == 0)
		code = dirty_rate_create(machine, err);
	if (code == 0)
		code = migration_create(&machine->migration, &machine_migration_ops, machine,
					&machine_migration_callbacks, machine, err);
	if (code == 0)
		code = machine_worker_start(machine, err);
	if (code < 0) {
		machine_destroy(machine);
		return code;
	}
	pthread_mutex_lock(&machine->lock);
	machine_publish(machine);
	pthread_mutex_unlock(&machine->lock);
	*result = machine;
	return 0;
}

void machine_destroy(struct machine *machine)
{
	if (!machine)
		return;
	migration_destroy(machine->migration);
	machine_worker_stop(machine);
	dirty_rate_stop(machine);
	throttle_stop(machine);
	if (machine->vm.fd >= 0)
		machine_unbuild(machine);
	x86_probe_close(&machine->probe);
	if (machine->serial_attached)
		serial_detach(&machine->serial);
	bus_free(&machine->ports);
	owner_close(&machine->owner);
	boot_free(&machine->boot);
	kvm_system_close(&machine->system);
	machine_config_free(&machine->config);
	published_free(&machine->status);
	pthread_mutex_destroy(&machine->lock);
	pthread_mutex_destroy(&machine->event_lock);
	pthread_mutex_destroy(&machine->request_lock);
	pthread_cond_destroy(&machine->request_wake);
	free(machine);
}

int machine_load_guest(struct machine *machine, struct error **err)
{
	const struct boot *boot = &machine->boot;
	int code;

	if (boot->kernel.size == 0)
		return error_set(err, -ENOENT, "there is no kernel to start the guest from");
	code = pvh_load(&boot->kernel, machine->ram, boot->initrd, boot->initrd_size, boot->cmdline,
			err);
	return code < 0 ? code : mptable_write(machine->ram, machine->config.cpus, err);
}

int machine_stop_vcpus(struct machine *machine, uint64_t deadline_us, struct error **err)
{
	int code;

	serial_hold(&machine->serial, true);
	kvm_vcpus_tell(machine->vcpus, machine->vcpu_count, 0);
	code = kvm_vcpus_wait(machine->vcpus, machine->vcpu_count,
			      deadline_us ? deadline_us : clock_us() + MACHINE_STOP_US);
	return code < 0 ? machine_vcpus_error(machine, code, err) : 0;
}

void machine_run_vcpus(struct machine *machine)
{
	for (unsigned int i = 0; i < machine->vcpu_count; i++)
		x86_vcpu_ran(&machine->states[i]);
	serial_hold(&machine->serial, false);
	kvm_vcpus_tell(machine->vcpus, machine->vcpu_count, KVM_VCPU_RUN);
}

/* From prelaunch or paused; `lock` held. The guest's clock has stood still. */
static int go_on(struct machine *machine, struct error **err)
{
	int code = x86_clock_start(&machine->platform, false);

	if (code < 0)
		return error_set_errno(err, code, "KVM cannot set the guest's clock");
	machine_run_vcpus(machine);
	machine_set_state(machine, MACHINE_RUNNING);
	machine_emit_simple(machine, MACHINE_EVENT_RESUME);
	return 0;
}

static int start_incoming(struct machine *machine, struct error **err)
{
	struct migration_request request = {
		.uri = machine->config.incoming,
		.fd = -1,
		.insecure = machine->config.insecure,
		.allow_exec = machine->config.allow_exec,
	};

	if (strcmp(machine->config.incoming, "defer") == 0)
		return 0;
	if (strncmp(request.uri, "fd:", 3) == 0)
		request.fd = io_inherited_fd(request.uri + 3, err);
	if (request.fd < -1)
		return request.fd;
	return migration_incoming(machine->migration, &request, err);
}

int machine_start(struct machine *machine, struct error **err)
{
	int code;

	if (machine->config.incoming)
		return start_incoming(machine, err);
	code = owner_record_open(machine, err);
	if (code < 0)
		return code;
	pthread_mutex_lock(&machine->lock);
	if (!machine->config.paused)
		code = go_on(machine, err);
	pthread_mutex_unlock(&machine->lock);
	return code;
}

static int stop_locked(struct machine *machine, struct error **err)
{
	const char *refused = runstate_refuse_stop(machine->state);
	int code;

	if (refused)
		return error_set(err, -EBUSY, "%s", refused);
	if (machine->state == MACHINE_INMIGRATE)
		machine->arrive_paused = true;
	if (machine->state != MACHINE_RUNNING)
		return 0;
	code = machine_stop_vcpus(machine, 0, err);
	if (code == 0) {
		code = x86_clock_read(&machine->platform, false);
		if (code < 0)
			error_set_errno(err, code, "KVM does not tell the guest's clock");
	}
	if (code < 0) {
		machine_run_vcpus(machine);
		return code;
	}
	machine_set_state(machine, MACHINE_PAUSED);
	machine_emit_simple(machine, MACHINE_EVENT_STOP);
	return 0;
}

int machine_stop(struct machine *machine, struct error **err)
{
	int code;

	pthread_mutex_lock(&machine->lock);
	code = stop_locked(machine, err);
	pthread_mutex_unlock(&machine->lock);
	return code;
}

static int cont_locked(struct machine *machine, struct error **err)
{
	const char *refused = runstate_refuse_cont(machine->state);

	if (refused)
		return error_set(err, machine->state == MACHINE_FINISH_MIGRATE ? -EBUSY : -EPERM,
				 "%s", refused);
	if (machine->in_doubt)
		return error_set(err, -EPERM,
				 "it is not known which process owns the guest: make sure that the "
				 "other one does not run it, then use x-migrate-resolve");
	switch (machine->state) {
	case MACHINE_INMIGRATE:
		machine->arrive_paused = false;
		return 0;
	case MACHINE_PRELAUNCH:
	case MACHINE_PAUSED:
		return go_on(machine, err);
	default:
		return 0;
	}
}

int machine_cont(struct machine *machine, struct error **err)
{
	int code;

	pthread_mutex_lock(&machine->lock);
	code = cont_locked(machine, err);
	pthread_mutex_unlock(&machine->lock);
	return code;
}

int machine_reset_locked(struct machine *machine, struct error **err)
{
	bool running = machine->state == MACHINE_RUNNING;
	int code;

	code = machine_stop_vcpus(machine, 0, err);
	if (code < 0)
		return code;
	machine_devices_reset(machine);
	code = x86_platform_reset(&machine->platform);
	if (code < 0)
		return error_set_errno(err, code, "KVM cannot reset the %s",
				       machine->platform.failed);
	code = machine_load_guest(machine, err);
	if (code < 0)
		return code;
	if (running)
		serial_hold(&machine->serial, false);
	kvm_vcpus_tell(machine->vcpus, machine->vcpu_count,
		       KVM_VCPU_RESET | (running ? KVM_VCPU_RUN : 0));
	code = kvm_vcpus_wait(machine->vcpus, machine->vcpu_count, clock_us() + MACHINE_STOP_US);
	if (code < 0)
		return machine_vcpus_error(machine, code, err);
	if (machine->state == MACHINE_SHUTDOWN || machine->state == MACHINE_INTERNAL_ERROR)
		machine_set_state(machine, MACHINE_PRELAUNCH);
	return 0;
}

int machine_reset(struct machine *machine, struct error **err)
{
	const char *refused;
	int code;

	pthread_mutex_lock(&machine->lock);
	refused = runstate_refuse_reset(machine->state);
	if (refused)
		code = error_set(err, machine->state == MACHINE_FINISH_MIGRATE ? -EBUSY : -EPERM,
				 "%s", refused);
	else if (machine->in_doubt)
		code = error_set(err, -EPERM,
				 "it is not known which process owns the guest; "
				 "x-migrate-resolve decides");
	else
		code = machine_reset_locked(machine, err);
	if (code == 0)
		machine_emit(machine, &(struct machine_event){.type = MACHINE_EVENT_RESET,
							      .reason = "host-qmp-system-reset"});
	pthread_mutex_unlock(&machine->lock);
	return code;
}

int machine_powerdown(struct machine *machine, struct error **err)
{
	int code = 0;

	pthread_mutex_lock(&machine->lock);
	if (machine->state != MACHINE_RUNNING)
		code = error_set(
			err, -EPERM,
			"the guest does not run (%s), so nobody would see the power button",
			machine_state_name(machine->state));
	else
		power_press_button(&machine->power);
	pthread_mutex_unlock(&machine->lock);
	if (code == 0)
		machine_emit_simple(machine, MACHINE_EVENT_POWERDOWN);
	return code;
}

void machine_quit(struct machine *machine, const char *reason)
{
	atomic_store(&machine->quitting, true);
	machine_emit(machine,
		     &(struct machine_event){.type = MACHINE_EVENT_SHUTDOWN, .reason = reason});
	machine_emit_simple(machine, MACHINE_EVENT_EXIT);
}

const struct machine_config *machine_get_config(const struct machine *machine)
{
	return &machine->config;
}

struct migration *machine_migration(struct machine *machine)
{
	return machine->migration;
}
