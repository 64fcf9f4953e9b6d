/* SPDX-License-Identifier: Apache-2.0 */
/* Real KVM: a vCPU's thread and state. */
#include "kvm_fixture.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* in: mov $0x1234, %dx; in %dx, %eax; mov %eax, %ebx; 1: inc %ecx; jmp 1b */
static const uint8_t code_in[] = {0x66, 0xba, 0x34, 0x12, 0xed, 0x89, 0xc3, 0x41, 0xeb, 0xfd};
/* mov $0x99, %al; out %al, $0x80; 1: jmp 1b */
static const uint8_t code_out[] = {0xb0, 0x99, 0xe6, 0x80, 0xeb, 0xfe};
/* Without an IDT: ud2 */
static const uint8_t code_fault[] = {0x0f, 0x0b};
/* 1: inc %ecx; jmp 1b */
static const uint8_t code_loop[] = {0x41, 0xeb, 0xfd};

static void sleep_ms(unsigned int ms)
{
	nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static bool wait_for(_Atomic(unsigned int) *value, unsigned int at_least)
{
	for (int i = 0; i < 5000 && *value < at_least; i++)
		sleep_ms(1);
	return *value >= at_least;
}

static uint64_t field(const struct fixture *fixture, const char *name)
{
	uint64_t value = 0;

	for (unsigned int i = 0; i < fixture->layout.count; i++)
		if (strcmp(fixture->layout.fields[i].name, name) == 0) {
			memcpy(&value,
			       (uint8_t *)fixture->state.state + fixture->layout.fields[i].offset,
			       fixture->layout.fields[i].size);
			return value;
		}
	fail_msg("no field %s", name);
	return 0;
}

static void test_stop_and_go_on(void **state)
{
	struct fixture fixture;
	uint64_t before, after;

	if (!fixture_open(&fixture))
		skip();
	fixture_start(&fixture, code_loop, sizeof(code_loop));
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
	sleep_ms(20);
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_SAVE), 0);
	before = field(&fixture, "rcx");
	assert_true(before > 0);
	sleep_ms(20);
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_SAVE), 0);
	assert_int_equal(field(&fixture, "rcx"), before); /* it stood still */
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_SAVE | KVM_VCPU_RUN), 0);
	sleep_ms(20);
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_SAVE), 0);
	after = field(&fixture, "rcx");
	assert_true(after > before);
	fixture_close(&fixture);
}

/* A read of a port that has been answered, but not completed, is in the saved state. */
static void test_pending_io(void **state)
{
	struct fixture fixture;

	if (!fixture_open(&fixture))
		skip();
	fixture.answer = 0xcafe1234;
	fixture_start(&fixture, code_in, sizeof(code_in));
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
	assert_true(wait_for(&fixture.exits, 1));
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_SAVE), 0);
	assert_int_equal(field(&fixture, "rax"), 0xcafe1234);
	assert_true(field(&fixture, "rip") >= FIXTURE_CODE + 5);
	fixture_close(&fixture);
}

static void test_exits(void **state)
{
	struct fixture fixture;

	if (!fixture_open(&fixture))
		skip();
	fixture_start(&fixture, code_out, sizeof(code_out));
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
	assert_true(wait_for(&fixture.exits, 1));
	assert_int_equal(fixture.last_port, 0x80);
	assert_int_equal(fixture.last_value, 0x99);

	fixture_start(&fixture, code_fault, sizeof(code_fault));
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
	for (int i = 0; i < 5000 && fixture.exit_reason < 0; i++)
		sleep_ms(1);
	assert_int_equal(fixture.exit_reason, KVM_VCPU_EXIT_RESET); /* triple fault */
	/* It stays halted until it is reset. */
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
	assert_true(fixture.vcpu.halted);
	fixture_start(&fixture, code_loop, sizeof(code_loop));
	assert_false(fixture.vcpu.halted);
	fixture_close(&fixture);
}

/* Fields of which KVM may give another value than was set, for reasons of their own. */
static bool moves_on(const char *name)
{
	return strcmp(name, "tsc") == 0 || strcmp(name, "tsc_offset") == 0 ||
	       strcmp(name, "lapic.regs") == 0;
}

static void test_round_trip(void **state)
{
	struct fixture a, b;

	if (!fixture_open(&a))
		skip();
	assert_true(fixture_open(&b));
	fixture_start(&a, code_loop, sizeof(code_loop));
	assert_int_equal(fixture_command(&a, KVM_VCPU_RUN), 0);
	sleep_ms(5);
	assert_int_equal(fixture_command(&a, KVM_VCPU_SAVE), 0);
	assert_int_equal(a.layout.count, b.layout.count);

	for (int round = 0; round < 2; round++) { /* a rehearsal, then in earnest */
		memcpy(b.state.state, a.state.state, sizeof(*b.state.state));
		assert_int_equal(fixture_command(&b, KVM_VCPU_LOAD), 0);
	}
	memset(b.state.state, 0, sizeof(*b.state.state));
	assert_int_equal(fixture_command(&b, KVM_VCPU_SAVE), 0);
	for (unsigned int i = 0; i < a.layout.count; i++) {
		const struct state_field *f = &a.layout.fields[i];

		if (moves_on(f->name))
			continue;
		if (memcmp((uint8_t *)a.state.state + f->offset,
			   (uint8_t *)b.state.state + f->offset, f->size) != 0)
			fail_msg("%s is not what was loaded", f->name);
	}
	assert_true(field(&b, "rcx") > 0);

	/* The second load writes what has changed since the first, and what has changed back. */
	for (int round = 0; round < 3; round++) {
		memcpy(b.state.state, a.state.state, sizeof(*b.state.state));
		b.state.state->sregs.cr2 += round == 1 ? 0x1234000 : 0;
		b.state.state->debugregs.db[2] += round == 1 ? 0x5678 : 0;
		b.state.state->xsave[32 * 8] = round == 1 ? 0x77 : 0; /* of an XMM register */
		b.state.state->xsave[512] |= 3;
		assert_int_equal(fixture_command(&b, KVM_VCPU_LOAD), 0);
		if (round == 0)
			continue;
		assert_int_equal(fixture_command(&b, KVM_VCPU_SAVE), 0);
		assert_int_equal(field(&b, "cr2") - field(&a, "cr2"), round == 1 ? 0x1234000 : 0);
		assert_int_equal(field(&b, "dr2") - field(&a, "dr2"), round == 1 ? 0x5678 : 0);
		assert_int_equal(b.state.state->xsave[32 * 8], round == 1 ? 0x77 : 0);
	}
	fixture_close(&a);
	fixture_close(&b);
}

/* Values from a stream that KVM does not take: a refusal that names the place; then a good load. */
static void test_hostile_values(void **state)
{
	struct fixture fixture;
	struct error *err = NULL;
	struct vcpu_state *good;
	uint64_t seed = random_seed();

	if (!fixture_open(&fixture))
		skip();
	good = malloc(sizeof(*good));
	fixture_start(&fixture, code_loop, sizeof(code_loop));
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_SAVE), 0);
	*good = *fixture.state.state;

	fixture.state.state->sregs.cr4 = UINT64_MAX;
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_LOAD), -EINVAL);
	assert_int_equal(x86_vcpu_error(&fixture.state, 3, -EINVAL, &err), -EINVAL);
	assert_non_null(strstr(error_text(err), "vCPU 3: KVM refuses the segment and control"));
	error_free(&err);
	*fixture.state.state = *good;
	fixture.state.state->mp_state = 77;
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_LOAD), -EINVAL);

	for (int round = 0; round < 300; round++) {
		uint8_t *bytes = (uint8_t *)fixture.state.state;

		*fixture.state.state = *good;
		for (int i = 0; i < 3; i++) {
			const struct state_field *f =
				&fixture.layout.fields[random_next(&seed) % fixture.layout.count];

			bytes[f->offset + random_next(&seed) % f->size] =
				(uint8_t)random_next(&seed);
		}
		(void)fixture_command(&fixture, KVM_VCPU_LOAD);
	}
	*fixture.state.state = *good;
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_LOAD | KVM_VCPU_SAVE), 0);
	assert_int_equal(field(&fixture, "rip"), good->regs.rip);
	free(good);
	fixture_close(&fixture);
}

static void test_layout(void **state)
{
	struct fixture fixture;

	if (!fixture_open(&fixture))
		skip();
	assert_true(fixture.layout.msr_count > 10);
	for (unsigned int i = 0; i < fixture.layout.count; i++) {
		const struct state_field *f = &fixture.layout.fields[i];

		assert_true(f->offset + f->size <= sizeof(struct vcpu_state));
		for (unsigned int j = 0; j < i; j++)
			assert_string_not_equal(f->name, fixture.layout.fields[j].name);
	}
	fixture_close(&fixture);
}

static void test_events(void **state)
{
	const uint64_t match = 0x99;
	struct fixture fixture;
	struct error *err = NULL;
	uint64_t count = 0;
	int fd, irq;

	if (!fixture_open(&fixture))
		skip();
	fd = eventfd(0, EFD_NONBLOCK);
	irq = eventfd(0, EFD_NONBLOCK);
	assert_ok(kvm_vm_ioeventfd(&fixture.vm, fd, true, 0x80, 1, &match, true, &err), err);
	assert_ok(kvm_vm_irqfd(&fixture.vm, irq, 5, true, &err), err);
	fixture_start(&fixture, code_out, sizeof(code_out));
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
	for (int i = 0; i < 5000 && read(fd, &count, sizeof(count)) < 0; i++)
		sleep_ms(1);
	assert_int_equal(count, 1);
	assert_int_equal(fixture.exits, 0); /* the kernel took the write */
	assert_int_equal(fixture_command(&fixture, 0), 0);

	/* The edge is latched in the PIC's request register. */
	count = 1;
	assert_int_equal(write(irq, &count, sizeof(count)), sizeof(count));
	for (int i = 0; i < 1000; i++) {
		struct kvm_irqchip chip = {.chip_id = KVM_IRQCHIP_PIC_MASTER};

		assert_int_equal(ioctl(fixture.vm.fd, KVM_GET_IRQCHIP, &chip), 0);
		count = chip.chip.pic.irr;
		if (count & 1 << 5)
			break;
		sleep_ms(1);
	}
	assert_true(count & 1 << 5);
	assert_ok(kvm_vm_irqfd(&fixture.vm, irq, 5, false, &err), err);
	assert_ok(kvm_vm_ioeventfd(&fixture.vm, fd, true, 0x80, 1, &match, false, &err), err);
	close(fd);
	close(irq);
	fixture_close(&fixture);
}

/* A vCPU that was sent to sleep is woken by a command at once, and sleeps no more afterwards. */
static void test_sleep(void **state)
{
	static const uint8_t code[] = {0xeb, 0xfe}; /* 1: jmp 1b */
	struct fixture fixture;
	uint64_t start;

	if (!fixture_open(&fixture))
		skip();
	fixture_start(&fixture, code, sizeof(code));
	assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
	for (int i = 0; i < 20; i++) {
		kvm_vcpu_sleep(&fixture.vcpu, 4000000);
		while (atomic_load(&fixture.vcpu.in_guest) || atomic_load(&fixture.vcpu.sleep_us))
			sched_yield();
		start = clock_us();
		assert_int_equal(fixture_command(&fixture, 0), 0);
		assert_in_range(clock_us() - start, 0, 500000);
		/* One that comes while it is parked is not for the time after. */
		kvm_vcpu_sleep(&fixture.vcpu, 4000000);
		assert_int_equal(fixture_command(&fixture, KVM_VCPU_RUN), 0);
		start = clock_us();
		while (!atomic_load(&fixture.vcpu.in_guest))
			sched_yield();
		assert_in_range(clock_us() - start, 0, 500000);
	}
	assert_true(atomic_load(&fixture.vcpu.slept_us) > 0);
	/* Without a command it sleeps as long as it was told, and goes on. */
	start = clock_us();
	kvm_vcpu_sleep(&fixture.vcpu, 50000);
	while (atomic_load(&fixture.vcpu.in_guest) || atomic_load(&fixture.vcpu.sleep_us))
		sched_yield();
	while (!atomic_load(&fixture.vcpu.in_guest))
		sched_yield();
	assert_true(clock_us() - start >= 50000);
	assert_int_equal(fixture_command(&fixture, 0), 0);
	fixture_close(&fixture);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sleep),      cmocka_unit_test(test_stop_and_go_on),
		cmocka_unit_test(test_pending_io), cmocka_unit_test(test_exits),
		cmocka_unit_test(test_round_trip), cmocka_unit_test(test_hostile_values),
		cmocka_unit_test(test_layout),     cmocka_unit_test(test_events),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
