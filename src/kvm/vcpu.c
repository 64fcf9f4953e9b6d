/* SPDX-License-Identifier: Apache-2.0 */
#include "kvm/vcpu.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/clock.h"

/* How long a waiter looks before it sleeps. Longer would take the CPU from the vCPU waited for. */
#define SPIN_US 20

/*
 * How long a vCPU that was parked looks for its next command before it sleeps: a stop is followed
 * by a save, a load by a run, a sleeper wakes late, and a processor that went idle meanwhile wakes
 * even later. It yields between two looks, so whoever has work gets the processor.
 */
#define PARK_SPIN_US 100

static _Thread_local struct kvm_vcpu *current;

static int kick_signal(void)
{
	return SIGRTMIN + 2;
}

static void kick_handler(int number)
{
	(void)number;
}

static pthread_once_t kick_once = PTHREAD_ONCE_INIT;

/* Without SA_RESTART, so that the signal ends KVM_RUN. */
static void kick_install(void)
{
	struct sigaction action = {.sa_handler = kick_handler};

	sigemptyset(&action.sa_mask);
	sigaction(kick_signal(), &action, NULL);
}

static void futex_wait(_Atomic(uint32_t) *word, uint32_t value, uint64_t timeout_us)
{
	struct timespec timeout = {
		.tv_sec = (time_t)(timeout_us / 1000000),
		.tv_nsec = (long)(timeout_us % 1000000 * 1000),
	};

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout_us ? &timeout : NULL, NULL, 0);
}

static void futex_wake(_Atomic(uint32_t) *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void kvm_vcpu_halt_current(void)
{
	if (current)
		current->halted = true;
}

static void handle_pio(struct kvm_vcpu *vcpu)
{
	struct kvm_run *run = vcpu->run;
	uint8_t *data = (uint8_t *)run + run->io.data_offset;

	for (uint32_t i = 0; i < run->io.count; i++)
		vcpu->ops->pio(vcpu->opaque, run->io.port, run->io.direction == KVM_EXIT_IO_OUT,
			       data + (size_t)i * run->io.size, run->io.size);
	vcpu->pending_io = true;
}

static void exited(struct kvm_vcpu *vcpu, enum kvm_vcpu_exit reason)
{
	vcpu->halted = true;
	vcpu->ops->exited(vcpu, reason);
}

__attribute__((format(printf, 2, 3))) static void failed(struct kvm_vcpu *vcpu, const char *format,
							 ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(vcpu->failure, sizeof(vcpu->failure), format, arguments);
	va_end(arguments);
	exited(vcpu, KVM_VCPU_EXIT_ERROR);
}

static void handle_system_event(struct kvm_vcpu *vcpu)
{
	switch (vcpu->run->system_event.type) {
	case KVM_SYSTEM_EVENT_SHUTDOWN:
		exited(vcpu, KVM_VCPU_EXIT_SHUTDOWN);
		break;
	case KVM_SYSTEM_EVENT_RESET:
	case KVM_SYSTEM_EVENT_CRASH:
		exited(vcpu, KVM_VCPU_EXIT_RESET);
		break;
	default:
		failed(vcpu, "KVM reports system event %u, which is not known here",
		       vcpu->run->system_event.type);
	}
}

static void handle_internal_error(struct kvm_vcpu *vcpu)
{
	const struct kvm_run *run = vcpu->run;

	if (run->internal.suberror == KVM_INTERNAL_ERROR_EMULATION)
		failed(vcpu, "KVM cannot emulate an instruction of the guest (internal error 1)");
	else
		failed(vcpu, "KVM internal error %u", run->internal.suberror);
}

static void handle_full_ring(struct kvm_vcpu *vcpu)
{
	int code = kvm_dirty_ring_full(&vcpu->ring);

	if (code < 0)
		failed(vcpu, "KVM does not empty a full dirty ring: %s", strerror(-code));
}

static void handle_exit(struct kvm_vcpu *vcpu)
{
	struct kvm_run *run = vcpu->run;

	switch (run->exit_reason) {
	case KVM_EXIT_IO:
		handle_pio(vcpu);
		break;
	case KVM_EXIT_MMIO:
		vcpu->ops->mmio(vcpu->opaque, run->mmio.phys_addr, run->mmio.is_write,
				run->mmio.data, run->mmio.len);
		vcpu->pending_io = true;
		break;
	case KVM_EXIT_INTR:
	case KVM_EXIT_IRQ_WINDOW_OPEN:
		break;
	case KVM_EXIT_DIRTY_RING_FULL:
		handle_full_ring(vcpu);
		break;
	case KVM_EXIT_SHUTDOWN:
		exited(vcpu, KVM_VCPU_EXIT_RESET);
		break;
	case KVM_EXIT_SYSTEM_EVENT:
		handle_system_event(vcpu);
		break;
	case KVM_EXIT_FAIL_ENTRY:
		failed(vcpu, "the processor refuses to enter the guest (reason 0x%llx)",
		       (unsigned long long)run->fail_entry.hardware_entry_failure_reason);
		break;
	case KVM_EXIT_INTERNAL_ERROR:
		handle_internal_error(vcpu);
		break;
	default:
		failed(vcpu, "KVM_RUN ended for reason %u, which is not known here",
		       run->exit_reason);
	}
}

/* One KVM_RUN and what follows from it. A spurious EINTR is as good as a kick. */
static void run_once(struct kvm_vcpu *vcpu)
{
	int code;

	vcpu->pending_io = false;
	code = ioctl(vcpu->fd, KVM_RUN, 0) == 0 ? 0 : errno;
	atomic_fetch_add(&vcpu->outs, 1);
	if (code == 0)
		handle_exit(vcpu);
	else if (code != EINTR && code != EAGAIN)
		failed(vcpu, "KVM_RUN fails: %s", strerror(code));
}

/*
 * A PIO or MMIO exit is finished by the next KVM_RUN (api.rst, "Completing exits"); only then are
 * the registers what the guest will see. An access that spans several parts exits again for each.
 */
static void complete_io(struct kvm_vcpu *vcpu)
{
	while (vcpu->pending_io && !vcpu->halted) {
		vcpu->run->immediate_exit = 1;
		run_once(vcpu);
	}
	if (vcpu->pending_io) {
		vcpu->run->immediate_exit = 1;
		(void)ioctl(vcpu->fd, KVM_RUN, 0);
		vcpu->pending_io = false;
	}
}

static void obey(struct kvm_vcpu *vcpu, uint32_t word)
{
	unsigned int once = word & (KVM_VCPU_SAVE | KVM_VCPU_LOAD | KVM_VCPU_RESET);

	complete_io(vcpu);
	vcpu->stopped_us = clock_us();
	vcpu->entered_us = 0;
	atomic_store(&vcpu->sleep_us, 0);
	if (once & (KVM_VCPU_LOAD | KVM_VCPU_RESET))
		vcpu->halted = false;
	vcpu->result = once ? vcpu->ops->command(vcpu, once) : 0;
	atomic_store(&vcpu->done, word);
	if (atomic_load(&vcpu->waited_for))
		futex_wake(&vcpu->done);
}

static void wait_command(struct kvm_vcpu *vcpu, uint32_t seen)
{
	uint64_t until = clock_us() + PARK_SPIN_US;

	while (atomic_load(&vcpu->command) == seen && clock_us() < until)
		sched_yield();
	futex_wait(&vcpu->command, seen, 0);
}

/* A kick wakes it: in_guest is false by now, so it is a wake of the command word. */
static void sleep_for(struct kvm_vcpu *vcpu, uint32_t seen)
{
	uint64_t start = clock_us(), until = start + atomic_exchange(&vcpu->sleep_us, 0),
		 now = start;

	while (atomic_load(&vcpu->command) == seen && now < until) {
		futex_wait(&vcpu->command, seen, until - now);
		now = clock_us();
	}
	atomic_fetch_add(&vcpu->slept_us, now - start);
}

static void enter(struct kvm_vcpu *vcpu)
{
	if (vcpu->entered_us == 0)
		vcpu->entered_us = clock_us();
	run_once(vcpu);
}

static void *vcpu_thread(void *opaque)
{
	struct kvm_vcpu *vcpu = opaque;
	uint32_t seen = atomic_load(&vcpu->done), word;

	current = vcpu;
	atomic_store(&vcpu->tid, (uint32_t)gettid());
	futex_wake(&vcpu->tid);
	for (;;) {
		/*
		 * kick() stores the command, then looks at in_guest; here in_guest is stored, then
		 * the command looked at: one of the two sees the other. immediate_exit is cleared
		 * before the look, so that a kick that comes after it still ends KVM_RUN.
		 */
		__atomic_store_n(&vcpu->run->immediate_exit, 0, __ATOMIC_RELAXED);
		atomic_store(&vcpu->in_guest, true);
		word = atomic_load(&vcpu->command);
		if (word == seen && (word & KVM_VCPU_RUN) && !vcpu->halted) {
			if (atomic_load(&vcpu->sleep_us) == 0) {
				enter(vcpu);
				continue;
			}
			atomic_store(&vcpu->in_guest, false);
			sleep_for(vcpu, word);
			continue;
		}
		atomic_store(&vcpu->in_guest, false);
		if (word == seen) {
			wait_command(vcpu, word);
			continue;
		}
		seen = word;
		obey(vcpu, word);
		if (word & KVM_VCPU_QUIT)
			return NULL;
	}
}

int kvm_vcpu_create(struct kvm_vcpu *vcpu, struct kvm_vm *vm, unsigned int index,
		    const struct kvm_vcpu_ops *ops, void *opaque, struct error **err)
{
	int code;

	*vcpu = (struct kvm_vcpu){
		.index = index,
		.fd = -1,
		.run_size = vm->system->run_size,
		.ops = ops,
		.opaque = opaque,
	};
	vcpu->fd = ioctl(vm->fd, KVM_CREATE_VCPU, (unsigned long)index);
	if (vcpu->fd < 0)
		return error_set_errno(err, -errno, "KVM cannot create vCPU %u", index);
	vcpu->run = mmap(NULL, vcpu->run_size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu->fd, 0);
	if (vcpu->run == MAP_FAILED) {
		code = -errno;
		close(vcpu->fd);
		vcpu->fd = -1;
		vcpu->run = NULL;
		return error_set_errno(err, code, "cannot map the run area of vCPU %u", index);
	}
	code = kvm_dirty_ring_open(&vm->dirty, &vcpu->ring, vcpu, err);
	if (code < 0)
		kvm_vcpu_destroy(vcpu);
	return code;
}

int kvm_vcpu_start(struct kvm_vcpu *vcpu, struct error **err)
{
	char name[16];
	sigset_t all, before;
	int code;

	pthread_once(&kick_once, kick_install);

	/* Signals of the process belong to the control thread; a vCPU thread takes kicks only. */
	sigfillset(&all);
	sigdelset(&all, kick_signal());
	pthread_sigmask(SIG_SETMASK, &all, &before);
	code = pthread_create(&vcpu->thread, NULL, vcpu_thread, vcpu);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (code != 0)
		return error_set_errno(err, -code, "cannot start the thread of vCPU %u",
				       vcpu->index);
	vcpu->thread_started = true;
	snprintf(name, sizeof(name), "vcpu %u", vcpu->index);
	pthread_setname_np(vcpu->thread, name);
	while (atomic_load(&vcpu->tid) == 0)
		futex_wait(&vcpu->tid, 0, 0);
	return 0;
}

void kvm_vcpu_destroy(struct kvm_vcpu *vcpu)
{
	if (vcpu->fd < 0)
		return;
	if (vcpu->thread_started) {
		kvm_vcpus_tell(vcpu, 1, KVM_VCPU_QUIT);
		pthread_join(vcpu->thread, NULL);
	}
	kvm_dirty_ring_close(&vcpu->ring);
	munmap(vcpu->run, vcpu->run_size);
	close(vcpu->fd);
	vcpu->fd = -1;
}

static void signal_out(struct kvm_vcpu *vcpu)
{
	__atomic_store_n(&vcpu->run->immediate_exit, 1, __ATOMIC_RELAXED);
	syscall(SYS_tgkill, getpid(), (pid_t)atomic_load(&vcpu->tid), kick_signal());
}

static void kick(struct kvm_vcpu *vcpu)
{
	if (atomic_load(&vcpu->in_guest))
		signal_out(vcpu);
	else
		futex_wake(&vcpu->command);
}

uint32_t kvm_vcpu_call_out(struct kvm_vcpu *vcpu)
{
	uint32_t outs = atomic_load(&vcpu->outs);

	if (atomic_load(&vcpu->in_guest))
		signal_out(vcpu);
	return outs;
}

void kvm_vcpu_sleep(struct kvm_vcpu *vcpu, uint64_t us)
{
	atomic_store(&vcpu->sleep_us, us);
	(void)kvm_vcpu_call_out(vcpu);
}

void kvm_vcpu_wait_out(struct kvm_vcpu *vcpu, uint32_t outs, uint64_t deadline_us)
{
	while (atomic_load(&vcpu->in_guest) && atomic_load(&vcpu->outs) == outs &&
	       clock_us() < deadline_us)
		sched_yield();
}

void kvm_vcpus_tell(struct kvm_vcpu *vcpus, unsigned int count, unsigned int bits)
{
	for (unsigned int i = 0; i < count; i++) {
		uint32_t sequence = atomic_load(&vcpus[i].command) >> 8;

		atomic_store(&vcpus[i].command, (sequence + 1) << 8 | bits);
	}
	for (unsigned int i = 0; i < count; i++)
		kick(&vcpus[i]);
}

static int wait_one(struct kvm_vcpu *vcpu, uint64_t deadline_us, uint64_t spin_until_us)
{
	uint32_t word = atomic_load(&vcpu->command), done;
	int code = 0;

	while (atomic_load(&vcpu->done) != word) {
		uint64_t now = clock_us();

		if (deadline_us && now >= deadline_us) {
			code = -ETIMEDOUT;
			break;
		}
		if (now < spin_until_us) {
			clock_relax();
			continue;
		}
		atomic_store(&vcpu->waited_for, true);
		done = atomic_load(&vcpu->done);
		if (done != word)
			futex_wait(&vcpu->done, done, deadline_us ? deadline_us - now : 0);
	}
	atomic_store(&vcpu->waited_for, false);
	return code;
}

int kvm_vcpus_wait(struct kvm_vcpu *vcpus, unsigned int count, uint64_t deadline_us)
{
	uint64_t spin_until_us = clock_us() + SPIN_US;
	int result = 0;

	for (unsigned int i = 0; i < count; i++) {
		int code = wait_one(&vcpus[i], deadline_us, spin_until_us);

		if (code < 0)
			return code;
	}
	for (unsigned int i = 0; i < count && result == 0; i++)
		result = vcpus[i].result < 0 ? vcpus[i].result : 0;
	return result;
}

/* So few are quicker done here than by waking their threads, one after the other. */
#define SERIAL_VCPUS 2

int kvm_vcpus_do(struct kvm_vcpu *vcpus, unsigned int count, unsigned int bits,
		 uint64_t deadline_us)
{
	int result = 0;

	if (count > SERIAL_VCPUS) {
		kvm_vcpus_tell(vcpus, count, bits);
		return kvm_vcpus_wait(vcpus, count, deadline_us);
	}
	for (unsigned int i = 0; i < count; i++) {
		if (bits & (KVM_VCPU_LOAD | KVM_VCPU_RESET))
			vcpus[i].halted = false;
		vcpus[i].result = vcpus[i].ops->command(&vcpus[i], bits);
		if (vcpus[i].result < 0 && result == 0)
			result = vcpus[i].result;
	}
	return result;
}
