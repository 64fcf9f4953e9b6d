/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cmos.h"

#include <stdbool.h>
#include <time.h>
#include "device/ports.h"

#define INDEX_MASK (CMOS_SIZE - 1)
#define CENTURY    0x32

static const struct state_field fields[] = {
	STATE_FIELD(struct cmos_state, index, STATE_U8, "index"),
	STATE_FIELD(struct cmos_state, bytes, STATE_BYTES, "bytes"),
};

static uint8_t bcd(int value)
{
	return (uint8_t)(value / 10 % 10 << 4 | value % 10);
}

static uint8_t read_byte(const struct cmos_state *state)
{
	time_t seconds = time(NULL);
	struct tm now;

	gmtime_r(&seconds, &now);
	switch (state->index) {
	case 0x00:
		return bcd(now.tm_sec);
	case 0x02:
		return bcd(now.tm_min);
	case 0x04:
		return bcd(now.tm_hour);
	case 0x06:
		return bcd(now.tm_wday + 1);
	case 0x07:
		return bcd(now.tm_mday);
	case 0x08:
		return bcd(now.tm_mon + 1);
	case 0x09:
		return bcd(now.tm_year % 100);
	case 0x0a:
		return 0x26; /* 32768 Hz, no update in progress */
	case 0x0b:
		return 0x02; /* 24 hours, BCD */
	case 0x0c:
		return 0x00; /* no interrupt */
	case 0x0d:
		return 0x80; /* valid */
	case CENTURY:
		return bcd((now.tm_year + 1900) / 100);
	default:
		return state->bytes[state->index];
	}
}

static void access(void *opaque, uint64_t offset, bool write, uint64_t *value, unsigned int size)
{
	struct cmos *cmos = opaque;

	pthread_mutex_lock(&cmos->lock);
	if (offset == 0 && write)
		cmos->now.index = *value & INDEX_MASK;
	else if (offset == 0)
		*value = 0xff;
	else if (write)
		cmos->now.bytes[cmos->now.index] = (uint8_t)*value;
	else
		*value = read_byte(&cmos->now);
	pthread_mutex_unlock(&cmos->lock);
}

int cmos_attach(struct cmos *cmos, struct bus *ports, struct error **err)
{
	*cmos = (struct cmos){.lock = PTHREAD_MUTEX_INITIALIZER};
	return bus_add(ports, PORT_CMOS, 2, "cmos", access, cmos, err);
}

struct state_object cmos_object(struct cmos *cmos)
{
	return (struct state_object){.name = "cmos",
				     .fields = fields,
				     .count = sizeof(fields) / sizeof(fields[0]),
				     .data = &cmos->state};
}

void cmos_reset(struct cmos *cmos)
{
	pthread_mutex_lock(&cmos->lock);
	cmos->now.index = 0; /* the bytes have a battery */
	pthread_mutex_unlock(&cmos->lock);
}

void cmos_save(struct cmos *cmos)
{
	pthread_mutex_lock(&cmos->lock);
	cmos->state = cmos->now;
	pthread_mutex_unlock(&cmos->lock);
}

void cmos_load(struct cmos *cmos)
{
	pthread_mutex_lock(&cmos->lock);
	cmos->now = cmos->state;
	cmos->now.index &= INDEX_MASK;
	pthread_mutex_unlock(&cmos->lock);
}
