/* SPDX-License-Identifier: Apache-2.0 */
/* Start of the other vCPUs, services of CPL 0, clock rate, power. */
#include "guest.h"

#define LAPIC_ICR      ((volatile uint32_t *)0xfee00300)
#define ICR_INIT       0xc4500 /* all but self, assert, INIT */
#define ICR_START      (0xc4600 | TRAMPOLINE / 4096)
#define ICR_PENDING    0x1000
#define START_LIMIT_US 2000000
#define PIT_HZ         1193182ull
#define PIT_SAMPLES    8
#define PIT_TICKS      (PIT_HZ / 50)
#define PIT_TRIES      5

extern uint32_t boot_cr3;
extern const char trampoline[], trampoline_end[];

static unsigned int registered = 1; /* vCPUs that run C */
static bool closed;                 /* who comes now is late */

static struct cpuid service(uint32_t number, uint64_t first, uint64_t second)
{
	register uint64_t magic __asm__("r11") = SERVICE_MAGIC;
	struct cpuid r;

	__asm__ volatile("ud2"
			 : "=a"(r.eax), "=b"(r.ebx), "=c"(r.ecx), "=d"(r.edx), "+r"(magic)
			 : "a"(number), "D"(first), "S"(second)
			 : "memory");
	return r;
}

/* As CPL 0 sees it: on a PVM host CPL 3 would see the host's. */
struct cpuid cpu_id(uint32_t leaf, uint32_t subleaf)
{
	return service(SERVICE_CPUID, leaf, subleaf);
}

void cpu_set_page_tables(uint64_t cr3)
{
	boot_cr3 = (uint32_t)cr3; /* below 4 GiB: the others load it in 32-bit code */
	service(SERVICE_CR3, cr3, 0);
}

void cpu_park(void)
{
	for (;;)
		service(SERVICE_PARK, 0, 0);
}

static void triple_fault(void) __attribute__((noreturn));

static void triple_fault(void)
{
	service(SERVICE_RESET, 0, 0);
	for (;;)
		__asm__ volatile("ud2");
}

void cpu_reset(void)
{
	out8(0xcf9, 6);
	out8(0x64, 0xfe);
	cpu_delay_us(100000);
	triple_fault();
}

/* The ways to power off that return where they do not exist. */
static void power_off_try(void)
{
	out8(0x600, 0x34);    /* ACPI sleep control: S5, enable */
	out16(0x604, 0x2000); /* QEMU's pc and q35 */
	out8(0x501, 0);       /* isa-debug-exit */
	out8(0xf4, 0);
	cpu_delay_us(100000);
}

void cpu_power_off(void)
{
	power_off_try();
	triple_fault();
}

void cpu_give_up(void)
{
	power_off_try(); /* no reset: the error would be repeated for ever */
	cpu_park();
}

void guest_refuse(const char *text, const char *word)
{
	line_begin("error");
	line_text(" ");
	line_text(text);
	if (word) {
		line_text(" ");
		line_text(word);
	}
	line_end();
	cpu_give_up();
}

void cpu_delay_us(uint64_t us)
{
	uint64_t until = tsc_read() + us_to_tsc(us);

	while ((int64_t)(until - tsc_read()) > 0)
		__asm__ volatile("pause");
}

/* Ticks of channel 0 since the top, and the TSC at that count: of a few samples the one whose latch
 * command took least time. */
static uint32_t pit_elapsed(uint64_t *tsc)
{
	uint64_t shortest = UINT64_MAX;
	uint32_t elapsed = 0;

	for (unsigned int i = 0; i < PIT_SAMPLES; i++) {
		uint64_t before = tsc_read(), took;
		uint32_t count;

		out8(0x43, 0);
		took = tsc_read() - before;
		count = in8(0x40);
		count |= (uint32_t)in8(0x40) << 8;
		if (took < shortest) {
			shortest = took;
			elapsed = 0xffff - count;
			*tsc = before + took / 2;
		}
	}
	return elapsed;
}

/* Over 20 of the 55 ms that channel 0 runs before it starts again; 0 when there is no such timer,
 * or this vCPU was kept from running for so long that it did. Channel 2 and port 0x61 are not on
 * every machine. */
static uint64_t pit_measure_once(void)
{
	uint64_t first, now;
	uint32_t start, elapsed;

	out8(0x43, 0x30); /* mode 0, low byte, high byte */
	out8(0x40, 0xff);
	out8(0x40, 0xff);
	start = pit_elapsed(&first);
	do {
		elapsed = pit_elapsed(&now) - start;
		if (!elapsed)
			return 0; /* it does not count: there is none */
		if (elapsed < PIT_TICKS)
			continue;
		out8(0x43, 0xe2); /* status of channel 0: bit 7 is set once it has run out */
		if (in8(0x40) & 0x80)
			return 0;
		return (now - first) * PIT_HZ / elapsed / 1000;
	} while (now - first < 1ull << 30);
	return 0;
}

static uint64_t pit_measure_khz(void)
{
	uint64_t khz = 0;

	out8(0x21, 0xff); /* no interrupt from it */
	out8(0xa1, 0xff);
	for (unsigned int i = 0; i < PIT_TRIES && !khz; i++)
		khz = pit_measure_once();
	return khz;
}

void cpu_find_tsc_rate(void)
{
	uint32_t leaves = cpu_id(0, 0).eax;
	struct cpuid id;

	guest.tsc_from = "cpuid-0x15";
	id = leaves >= 0x15 ? cpu_id(0x15, 0) : (struct cpuid){0};
	if (id.eax && id.ebx && id.ecx) {
		guest.tsc_khz = (uint64_t)id.ecx * id.ebx / id.eax / 1000;
		return;
	}
	guest.tsc_from = "cpuid-0x40000010";
	if (cpu_id(1, 0).ecx >> 31 && cpu_id(0x40000000, 0).eax - 0x40000010 < 0xff) {
		guest.tsc_khz = cpu_id(0x40000010, 0).eax;
		if (guest.tsc_khz)
			return;
	}
	guest.tsc_from = "pit";
	guest.tsc_khz = pit_measure_khz();
	if (guest.tsc_khz)
		return;
	guest.tsc_from = "cpuid-0x16";
	guest.tsc_khz = leaves >= 0x16 ? (cpu_id(0x16, 0).eax & 0xffff) * 1000ull : 0;
	if (guest.tsc_khz)
		return;
	guest.tsc_from = "guess";
	guest.tsc_khz = 2000000;
}

static void send_ipi(uint32_t command)
{
	uint64_t until = tsc_read() + us_to_tsc(10000);

	*LAPIC_ICR = command;
	while (*LAPIC_ICR & ICR_PENDING && (int64_t)(until - tsc_read()) > 0)
		__asm__ volatile("pause");
}

unsigned int cpu_start_others(unsigned int wanted)
{
	uint64_t began, again;

	if (wanted < 2)
		return 1;
	if (!memory_is_ram(TRAMPOLINE, PAGE))
		guest_refuse("no memory at 0x8000 to start the other vCPUs from", NULL);
	memcpy((void *)TRAMPOLINE, trampoline, (size_t)(trampoline_end - trampoline));
	send_ipi(ICR_INIT);
	cpu_delay_us(1000);
	send_ipi(ICR_START);
	began = tsc_read();
	again = began + us_to_tsc(100000);
	while (load(&registered) < wanted && tsc_read() - began < us_to_tsc(START_LIMIT_US)) {
		if (again && (int64_t)(tsc_read() - again) > 0) {
			send_ipi(ICR_START);
			again = 0;
		}
		cpu_delay_us(20);
	}
	store(&closed, true);
	/* One that found `closed` unset may still be counting itself. */
	cpu_delay_us(1000);
	return load(&registered) < wanted ? load(&registered) : wanted;
}

unsigned int cpu_register(void)
{
	unsigned int id;

	if (load(&closed))
		cpu_park();
	id = __atomic_fetch_add(&registered, 1, __ATOMIC_ACQ_REL);
	if (id >= guest.config.cpus)
		cpu_park();
	return id;
}
