/* SPDX-License-Identifier: Apache-2.0 */
/* The machine as the migration engine sees it (contracts: migration/ops.h). */
#include "migration/ops.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "base/log.h"
#include "machine/internal.h"
#include "machine/owner_path.h"

/* A hint may be late, not for ever. */
#define SAVE_EARLY_US 2000000u

static int describe(void *opaque, struct description *d, struct error **err)
{
	struct machine *machine = opaque;
	enum machine_state state;
	int code;

	pthread_mutex_lock(&machine->lock);
	state = machine->state;
	code = machine->in_doubt ? -EBUSY : 0;
	pthread_mutex_unlock(&machine->lock);
	if (code < 0)
		return error_set(err, code,
				 "it is not known which process owns the guest; "
				 "x-migrate-resolve decides");
	if (state != MACHINE_RUNNING && state != MACHINE_PAUSED && state != MACHINE_PRELAUNCH)
		return error_set(err, -EPERM, "a guest that is in state %s cannot be moved",
				 machine_state_name(state));
	return machine_describe(machine, d, err);
}

/* Takes over what was adopted. On failure the machine is as before, unbuilt. */
static int build_adopted(struct machine *machine, struct machine_config *config,
			 const struct x86_cpuid *cpuid, struct error **err)
{
	struct machine_config before = machine->config;
	struct boot boot;
	int code;

	if (config->kernel) {
		code = boot_set_cmdline(&machine->boot, config->append, err);
	} else {
		code = boot_read(&boot, config, err);
		if (code == 0) {
			boot_free(&machine->boot);
			machine->boot = boot;
		}
	}
	if (code < 0)
		return code;
	machine->cpuid = *cpuid;
	machine->config = *config;
	code = machine_build(machine, err);
	if (code < 0) {
		machine->config = before;
		return code;
	}
	machine_config_free(&before);
	memset(config, 0, sizeof(*config));
	machine_publish(machine);
	return 0;
}

static int build(void *opaque, const struct description *d, bool check_only, struct error **err)
{
	struct machine *machine = opaque;
	struct machine_config config;
	struct x86_cpuid cpuid;
	struct ram *ram;
	int code;

	pthread_mutex_lock(&machine->lock);
	if (machine_config_copy(&config, &machine->config) < 0) {
		pthread_mutex_unlock(&machine->lock);
		return error_set(err, -ENOMEM, "no memory for the machine's options");
	}
	if (machine->state != MACHINE_INMIGRATE || machine->built)
		code = error_set(err, -EBUSY, "this process has a guest already");
	else
		code = machine_adopt(machine, d, &config, &cpuid, err);
	if (code == 0 && check_only) {
		code = ram_create(&ram, config.memory, config.backing, err);
		if (code == 0)
			ram_destroy(ram);
	} else if (code == 0) {
		code = build_adopted(machine, &config, &cpuid, err);
	}
	pthread_mutex_unlock(&machine->lock);
	machine_config_free(&config);
	return code;
}

static struct ram *get_ram(void *opaque)
{
	struct machine *machine = opaque;

	return machine->ram;
}

static const struct state_object *state(void *opaque, unsigned int *count)
{
	struct machine *machine = opaque;

	*count = machine->object_count;
	return machine->objects;
}

static struct owner_record *owner(void *opaque)
{
	struct machine *machine = opaque;

	return &machine->owner;
}

/* --- source --- */

static int save_platform(struct machine *machine)
{
	int code = x86_platform_save(&machine->platform);

	machine_devices_save(machine);
	return code;
}

static int save_early(void *opaque, struct error **err)
{
	struct machine *machine = opaque;
	unsigned int run;
	int code;

	pthread_mutex_lock(&machine->lock);
	run = machine->state == MACHINE_RUNNING ? KVM_VCPU_RUN : 0;
	kvm_vcpus_tell(machine->vcpus, machine->vcpu_count, KVM_VCPU_SAVE | run);
	code = kvm_vcpus_wait(machine->vcpus, machine->vcpu_count, clock_us() + SAVE_EARLY_US);
	if (code < 0)
		machine_vcpus_error(machine, code, err);
	if (code == 0) {
		code = save_platform(machine);
		if (code == 0 && run)
			code = x86_clock_read(&machine->platform, true);
		if (code < 0)
			error_set_errno(err, code, "KVM does not tell the state of the %s",
					machine->platform.failed);
	}
	pthread_mutex_unlock(&machine->lock);
	return code;
}

/* A halted vCPU has asked for a reset or power-off that the machine's thread has yet to do. */
static bool request_waits(const struct machine *machine)
{
	for (unsigned int i = 0; i < machine->vcpu_count; i++)
		if (machine->vcpus[i].halted)
			return true;
	return false;
}

static bool may_leave(const struct machine *machine)
{
	return !machine->in_doubt && runstate_may_follow(machine->state, MACHINE_FINISH_MIGRATE);
}

/* Stops the vCPUs with nothing left to be done for the guest; returns with `lock` held when 0. */
static int stop_quietly(struct machine *machine, uint64_t deadline_us, struct error **err)
{
	for (;;) {
		int code = 0;

		pthread_mutex_lock(&machine->lock);
		if (!may_leave(machine))
			code = error_set(err, -ECANCELED,
					 "the guest cannot be moved any more: it is in state %s",
					 machine_state_name(machine->state));
		if (code == 0)
			code = machine_stop_vcpus(machine, deadline_us, err);
		if (code == 0 && !request_waits(machine))
			return 0;
		if (machine->state == MACHINE_RUNNING)
			machine_run_vcpus(machine);
		pthread_mutex_unlock(&machine->lock);
		if (code == 0 && clock_us() > deadline_us)
			code = error_set(err, -ETIMEDOUT,
					 "the guest's reset or power-off takes "
					 "longer than the stop may");
		if (code < 0)
			return code;
		nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
	}
}

/* [window] All have stopped; each saves itself. */
static int save_stopped(struct machine *machine, bool running, uint64_t deadline_us)
{
	int code = 0;

	if (running)
		code = x86_clock_read(&machine->platform, true);
	if (code == 0)
		code = save_platform(machine);
	if (code == 0)
		code = kvm_vcpus_do(machine->vcpus, machine->vcpu_count, KVM_VCPU_SAVE,
				    deadline_us);
	return code;
}

static int stop(void *opaque, uint64_t deadline_us, bool *was_running, uint64_t *stopped_us,
		struct error **err)
{
	struct machine *machine = opaque;
	bool running;
	int code;

	code = stop_quietly(machine, deadline_us, err);
	if (code < 0)
		return code;
	running = machine->state == MACHINE_RUNNING;
	*stopped_us = 0;
	for (unsigned int i = 0; i < machine->vcpu_count; i++)
		if (machine->vcpus[i].stopped_us > *stopped_us)
			*stopped_us = machine->vcpus[i].stopped_us;
	code = save_stopped(machine, running, deadline_us);
	if (code < 0) {
		error_set_errno(err, code, "the stopped guest's state cannot be read");
		if (running)
			machine_run_vcpus(machine);
	} else {
		*was_running = running;
		machine->move_stopped = true;
		machine->stopped_real_us = machine_realtime_us();
		machine->state_before = machine->state;
		machine_set_state(machine, MACHINE_FINISH_MIGRATE);
	}
	pthread_mutex_unlock(&machine->lock);
	return code;
}

static void emit_stop(struct machine *machine)
{
	if (machine->state_before == MACHINE_RUNNING)
		machine_emit(machine, &(struct machine_event){
					      .type = MACHINE_EVENT_STOP,
					      .realtime_us = machine->stopped_real_us,
				      });
}

static void resume(void *opaque)
{
	struct machine *machine = opaque;
	bool told;

	pthread_mutex_lock(&machine->lock);
	told = machine->in_doubt;
	machine->move_stopped = false;
	if (machine->state == MACHINE_FINISH_MIGRATE || machine->in_doubt) {
		machine->in_doubt = false;
		if (machine->state_before == MACHINE_RUNNING)
			machine_run_vcpus(machine);
		if (machine->state != machine->state_before)
			machine_set_state(machine, machine->state_before);
		if (!told)
			emit_stop(machine);
		if (machine->state_before == MACHINE_RUNNING)
			machine_emit_simple(machine, MACHINE_EVENT_RESUME);
	}
	pthread_mutex_unlock(&machine->lock);
}

static void moved(void *opaque)
{
	struct machine *machine = opaque;

	pthread_mutex_lock(&machine->lock);
	if (machine->state == MACHINE_FINISH_MIGRATE || machine->in_doubt) {
		bool told = machine->in_doubt;

		machine->in_doubt = false;
		machine_set_state(machine, MACHINE_POSTMIGRATE);
		if (!told)
			emit_stop(machine);
	}
	pthread_mutex_unlock(&machine->lock);
}

static void in_doubt(void *opaque)
{
	struct machine *machine = opaque;

	pthread_mutex_lock(&machine->lock);
	if (machine->state == MACHINE_FINISH_MIGRATE) {
		machine->in_doubt = true;
		machine_set_state(machine, MACHINE_PAUSED);
		emit_stop(machine);
	}
	pthread_mutex_unlock(&machine->lock);
}

/* --- destination --- */

static int load(void *opaque, struct error **err)
{
	struct machine *machine = opaque;
	int64_t adjust = x86_clock_tsc_adjust(&machine->platform);
	int code;

	/* Interrupt controllers first: what they deliver while they are set is then overwritten by
	 * the local APICs' own state. */
	code = x86_platform_load(&machine->platform);
	if (code < 0)
		return error_set_errno(err, code, "KVM refuses the state of the %s",
				       machine->platform.failed);
	for (unsigned int i = 0; i < machine->vcpu_count; i++) {
		machine->states[i].tsc_adjust = adjust;
		machine->states[i].saved_host_tsc = machine->platform.clock.host_tsc;
	}
	code = kvm_vcpus_do(machine->vcpus, machine->vcpu_count, KVM_VCPU_LOAD,
			    clock_us() + MACHINE_STOP_US);
	if (code < 0)
		return machine_vcpus_error(machine, code, err);
	serial_hold(&machine->serial, true);
	machine_devices_load(machine);
	return 0;
}

static void run(void *opaque, bool running, uint64_t *running_us)
{
	struct machine *machine = opaque;

	pthread_mutex_lock(&machine->lock);
	movegen_arrived(&machine->movegen);
	(void)x86_clock_start(&machine->platform, running);
	/* Before they are told: a vCPU may take this thread's processor at once. */
	*running_us = clock_us();
	if (running && !machine->arrive_paused) {
		/* Not waited for: this thread would only compete with the vCPUs for a processor. */
		machine_run_vcpus(machine);
		machine_set_state(machine, MACHINE_RUNNING);
	} else {
		if (running)
			(void)x86_clock_read(&machine->platform, false);
		machine_set_state(machine, MACHINE_PAUSED);
	}
	pthread_mutex_unlock(&machine->lock);
}

/* Coming from another host the guest has no record here yet; the next move wants one. */
static void own(struct machine *machine)
{
	cleanup_error struct error *err = NULL;

	if (machine->owner.fd < 0 && owner_record_open(machine, &err) < 0)
		log_warning("the guest runs without an owner record: %s", error_text(err));
}

static void arrived(void *opaque)
{
	struct machine *machine = opaque;

	pthread_mutex_lock(&machine->lock);
	own(machine);
	if (machine->state == MACHINE_RUNNING)
		machine_emit_simple(machine, MACHINE_EVENT_RESUME);
	pthread_mutex_unlock(&machine->lock);
	x86_probe_close(&machine->probe);
}

const struct migration_ops machine_migration_ops = {
	.describe = describe,
	.build = build,
	.ram = get_ram,
	.state = state,
	.log_start = machine_log_start,
	.log_stop = machine_log_stop,
	.log_initially_set = machine_log_initially_set,
	.log_harvest = machine_log_harvest,
	.log_clear = machine_log_clear,
	.save_early = save_early,
	.stop = stop,
	.resume = resume,
	.moved = moved,
	.in_doubt = in_doubt,
	.load = load,
	.run = run,
	.arrived = arrived,
	.owner = owner,
};

/* --- what the engine tells --- */

static void status_changed(void *opaque, enum migration_status status)
{
	struct machine *machine = opaque;
	struct migration_info info;
	bool lost;

	machine_emit(machine,
		     &(struct machine_event){.type = MACHINE_EVENT_MIGRATION, .value = status});
	if (status != MIGRATION_FAILED && status != MIGRATION_CANCELLED)
		return;
	/* A destination that was built and did not get the guest is of no further use. */
	pthread_mutex_lock(&machine->lock);
	lost = machine->state == MACHINE_INMIGRATE;
	pthread_mutex_unlock(&machine->lock);
	if (!lost)
		return;
	migration_query(machine->migration, &info);
	/* Without a reason this process was told to end while it waited. */
	if (*info.error)
		log_error("the guest did not arrive: %s", info.error);
	machine_emit(machine, &(struct machine_event){.type = MACHINE_EVENT_EXIT, .value = 1});
}

static void pass(void *opaque, uint64_t number)
{
	machine_emit(opaque, &(struct machine_event){.type = MACHINE_EVENT_MIGRATION_PASS,
						     .value = number});
}

const struct migration_callbacks machine_migration_callbacks = {
	.status_changed = status_changed,
	.pass = pass,
};
