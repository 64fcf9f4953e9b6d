/* SPDX-License-Identifier: Apache-2.0 */
/* 16550 at 0x3f8, polled. A line is put together in memory and sent in one go under the lock. */
#include "guest.h"

#define PORT       0x3f8
#define LSR        (PORT + 5)
#define LSR_DATA   0x01
#define LSR_EMPTY  0x20
#define FIFO       16
#define SEND_LIMIT (1ull << 31) /* TSC: a second or so, then the rest of the line is given up */
#define NOBODY     0xffffffffu
#define LINE       512

static uint32_t owner = NOBODY; /* vCPU that holds the lock */
static char line[LINE];
static unsigned int length;
static bool measured; /* the holder accounts its I/O time */

void serial_init(void)
{
	out8(PORT + 1, 0);
	out8(PORT + 3, 0x80);
	out8(PORT, 1); /* 115200 */
	out8(PORT + 1, 0);
	out8(PORT + 3, 3);
	out8(PORT + 2, 7);
	out8(PORT + 4, 3);
}

static bool lock_try(uint32_t id)
{
	uint32_t expected = NOBODY;

	return __atomic_compare_exchange_n(&owner, &expected, id, false, __ATOMIC_ACQUIRE,
					   __ATOMIC_RELAXED);
}

static void begin(const char *kind)
{
	length = 0;
	line_text("godwit-guest");
	if (*kind) {
		line_text(" ");
		line_text(kind);
	}
}

void line_begin(const char *kind)
{
	while (!lock_try(0))
		__asm__ volatile("pause");
	measured = true;
	begin(kind);
}

void line_begin_fault(struct vcpu *vcpu)
{
	uint64_t began = tsc_read();

	/* The holder may be this vCPU, or one that had an exception while it printed. */
	while (!lock_try(vcpu->id) && owner != vcpu->id && tsc_read() - began < SEND_LIMIT)
		__asm__ volatile("pause");
	measured = false;
	begin("exception");
}

static void line_char(char c)
{
	if (length < LINE - 1)
		line[length++] = c;
}

void line_text(const char *text)
{
	while (*text)
		line_char(*text++);
}

static void line_digits(uint64_t value, unsigned int base, unsigned int width)
{
	char digits[20];
	unsigned int count = 0;

	do {
		digits[count++] = "0123456789abcdef"[value % base];
		value /= base;
	} while (value || count < width);
	while (count)
		line_char(digits[--count]);
}

static void line_name(const char *name)
{
	line_char(' ');
	line_text(name);
	line_char('=');
}

void line_number(const char *name, uint64_t value)
{
	line_name(name);
	line_digits(value, 10, 1);
}

void line_hex(const char *name, uint64_t value)
{
	line_name(name);
	line_text("0x");
	line_digits(value, 16, 1);
}

void line_string(const char *name, const char *value)
{
	line_name(name);
	line_text(value);
}

void line_hex4(uint16_t value)
{
	line_digits(value, 16, 4);
}

static void account(void)
{
	if (measured)
		measure_io(&guest.vcpus[0]);
}

static bool wait_empty(void)
{
	uint64_t began = tsc_read();

	while (!(in8(LSR) & LSR_EMPTY)) {
		account();
		if (tsc_read() - began > SEND_LIMIT)
			return false;
	}
	account();
	return true;
}

void line_end(void)
{
	line_char('\n');
	line[length - 1] = '\n'; /* a line that was too long is cut */
	for (unsigned int i = 0; i < length; i++) {
		if (i % FIFO == 0 && !wait_empty())
			break;
		out8(PORT, (uint8_t)line[i]);
		account();
	}
	__atomic_store_n(&owner, NOBODY, __ATOMIC_RELEASE);
}

int serial_read(void)
{
	uint8_t status = in8(LSR);
	int value = -1;

	/* All ones: no serial port. */
	if (status != 0xff && status & LSR_DATA)
		value = in8(PORT);
	account();
	return value;
}
