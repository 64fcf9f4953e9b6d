/* SPDX-License-Identifier: Apache-2.0 */
#include "guest.h"

enum phase { PHASE_START, PHASE_FILL, PHASE_RUN };

static struct vcpu vcpus[MAX_CPUS];
struct guest guest = {.vcpus = vcpus};

static enum phase phase;
static unsigned int filled;
static struct vcpu *by_slot[MAX_CPUS];

void guest_enter(uint64_t slot, const struct start_info *info) __attribute__((noreturn));
void guest_fault(uint64_t vector, uint64_t error, uint64_t rip, uint64_t cr2, uint64_t slot)
	__attribute__((noreturn));

void guest_fault(uint64_t vector, uint64_t error, uint64_t rip, uint64_t cr2, uint64_t slot)
{
	struct vcpu *vcpu = slot < MAX_CPUS ? by_slot[slot] : NULL;

	if (!vcpu || vcpu->dead) /* too early, or while it printed this line */
		cpu_park();
	store(&vcpu->dead, true);
	line_begin_fault(vcpu);
	line_number("cpu", vcpu->id);
	line_number("vector", vector);
	line_hex("error", error);
	line_hex("rip", rip);
	line_hex("cr2", cr2);
	line_text(" this vCPU stops");
	line_end();
	cpu_park();
}

static void run(struct vcpu *vcpu) __attribute__((noreturn));

static void run(struct vcpu *vcpu)
{
	unsigned int (*step)(struct vcpu *, uint64_t) = guest.config.mode->step;
	unsigned int work = 0;

	measure_start(vcpu);
	for (;;) {
		uint64_t now = measure_tick(vcpu, work);

		report_interval(vcpu);
		if (vcpu->id == 0)
			report_poll(vcpu, now);
		work = step(vcpu, now);
	}
}

static void run_other(uint64_t slot) __attribute__((noreturn));

static void run_other(uint64_t slot)
{
	struct vcpu *vcpu = &vcpus[cpu_register()];

	by_slot[slot] = vcpu;
	while (load(&phase) < PHASE_FILL)
		__asm__ volatile("pause");
	if (vcpu->id >= guest.cpus)
		cpu_park();
	work_fill(vcpu);
	__atomic_fetch_add(&filled, 1, __ATOMIC_ACQ_REL);
	while (load(&phase) < PHASE_RUN)
		__asm__ volatile("pause");
	run(vcpu);
}

/* Hot pages first, then cold ones; each vCPU has one run of either. */
static void divide(void)
{
	uint64_t hot = guest.config.hot / PAGE / guest.cpus;
	uint64_t cold = guest.config.fill / PAGE / guest.cpus;
	uint64_t rest = guest.config.fill / PAGE % guest.cpus;
	uint64_t first = hot * guest.cpus;

	for (unsigned int i = 0; i < guest.cpus; i++) {
		vcpus[i].id = i;
		vcpus[i].hot = (struct range){hot * i, hot};
		vcpus[i].cold = (struct range){first, cold + (i < rest)};
		first += vcpus[i].cold.pages;
	}
}

static void configure(const char *line)
{
	const char *text;
	char word[32];

	if (!config_parse(line, &guest.config, &text, word))
		guest_refuse(text, word);
	if (guest.config.hot > guest.usable ||
	    guest.config.fill > guest.usable - guest.config.hot) {
		line_begin("error");
		line_text(" hot and fill do not fit the memory: give it more or lower them");
		line_number("hot", guest.config.hot);
		line_number("fill", guest.config.fill);
		line_number("free", guest.usable);
		line_end();
		cpu_give_up();
	}
}

static void boot_print(void)
{
	line_begin("boot");
	line_string("version", GODWIT_VERSION);
	line_string("mode", guest.config.mode->name);
	line_number("tsc-khz", guest.tsc_khz);
	line_string("tsc-from", guest.tsc_from);
	line_number("memory-mb", guest.memory >> 20);
	line_number("free-mb", guest.usable >> 20);
	line_number("cpus", guest.config.cpus);
	line_end();
}

static void start_others(void)
{
	guest.cpus = cpu_start_others((unsigned int)guest.config.cpus);
	if (guest.cpus == guest.config.cpus)
		return;
	line_begin("warning");
	line_text(" not all vCPUs came within 2 s of INIT and SIPI; going on without them");
	line_number("wanted", guest.config.cpus);
	line_number("started", guest.cpus);
	line_end();
}

void guest_enter(uint64_t slot, const struct start_info *info)
{
	uint64_t began = tsc_read(), fill_began;
	const char *line, *text;

	if (slot)
		run_other(slot);
	by_slot[0] = &vcpus[0];
	guest.tsc_khz = 2000000; /* until it is known */
	serial_init();
	line = memory_init(info, &text);
	if (!line)
		guest_refuse(text, NULL);
	configure(line);
	cpu_find_tsc_rate();
	boot_print();
	start_others();
	divide();
	fill_began = tsc_read();
	store(&phase, PHASE_FILL);
	work_fill(&vcpus[0]);
	while (load(&filled) < guest.cpus - 1)
		__asm__ volatile("pause");
	work_damage();
	line_begin("ready");
	line_number("cpus", guest.cpus);
	line_number("hot", vcpus[0].hot.pages * PAGE * guest.cpus);
	line_number("fill", guest.config.fill / PAGE * PAGE);
	line_number("fill-us", tsc_to_us(tsc_read() - fill_began));
	line_number("boot-us", tsc_to_us(tsc_read() - began));
	line_hex("tsc", tsc_read());
	line_end();
	measure_start(&vcpus[0]);
	report_start();
	store(&phase, PHASE_RUN);
	run(&vcpus[0]);
}
