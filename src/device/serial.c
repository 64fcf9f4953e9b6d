/* SPDX-License-Identifier: Apache-2.0 */
#include "device/serial.h"

#include <string.h>
#include "device/ports.h"

enum { DATA, IER, IIR_FCR, LCR, MCR, LSR, MSR, SCR };

#define IER_DATA        0x01u
#define IER_TRANSMITTER 0x02u
#define IER_LINE        0x04u
#define IER_MASK        0x0fu

#define IIR_NONE        0x01u
#define IIR_TRANSMITTER 0x02u
#define IIR_DATA        0x04u
#define IIR_LINE        0x06u
#define IIR_FIFOS       0xc0u

#define FCR_ENABLE   0x01u
#define FCR_CLEAR_RX 0x02u

#define LCR_DLAB 0x80u
#define MCR_OUT2 0x08u
#define MCR_LOOP 0x10u
#define MCR_MASK 0x1fu

#define LSR_DATA    0x01u
#define LSR_OVERRUN 0x02u
#define LSR_ERRORS  0x1eu
#define LSR_THRE    0x20u
#define LSR_TEMT    0x40u

#define MSR_CTS 0x10u
#define MSR_DSR 0x20u
#define MSR_DCD 0x80u

static const struct state_field fields[] = {
	STATE_FIELD(struct serial_state, ier, STATE_U8, "ier"),
	STATE_FIELD(struct serial_state, lcr, STATE_U8, "lcr"),
	STATE_FIELD(struct serial_state, mcr, STATE_U8, "mcr"),
	STATE_FIELD(struct serial_state, scr, STATE_U8, "scr"),
	STATE_FIELD(struct serial_state, fcr, STATE_U8, "fcr"),
	STATE_FIELD(struct serial_state, dll, STATE_U8, "dll"),
	STATE_FIELD(struct serial_state, dlm, STATE_U8, "dlm"),
	STATE_FIELD(struct serial_state, lsr_errors, STATE_U8, "lsr_errors"),
	STATE_FIELD(struct serial_state, thr_pending, STATE_U8, "thr_pending"),
	STATE_FIELD(struct serial_state, rx_count, STATE_U8, "rx_count"),
	STATE_FIELD(struct serial_state, rx, STATE_BYTES, "rx"),
};

static const struct serial_state fresh = {.dll = 12}; /* 9600 baud */

static unsigned int fifo_size(const struct serial *serial)
{
	return serial->now.fcr & FCR_ENABLE ? SERIAL_FIFO : 1;
}

static uint8_t interrupt(const struct serial *serial)
{
	const struct serial_state *now = &serial->now;

	if ((now->ier & IER_LINE) && now->lsr_errors)
		return IIR_LINE;
	if ((now->ier & IER_DATA) && now->rx_count)
		return IIR_DATA;
	if ((now->ier & IER_TRANSMITTER) && now->thr_pending)
		return IIR_TRANSMITTER;
	return IIR_NONE;
}

/* The line follows the interrupt sources; OUT2 is its gate on a PC. Lock held. */
static bool line_level(const struct serial *serial)
{
	return interrupt(serial) != IIR_NONE && (serial->now.mcr & MCR_OUT2);
}

static void update_line(struct serial *serial)
{
	bool line = line_level(serial);

	if (line == serial->line)
		return;
	serial->line = line;
	if (serial->vm)
		(void)kvm_vm_irq_line(serial->vm, IRQ_SERIAL, line);
}

static void put_received(struct serial *serial, uint8_t byte)
{
	if (serial->now.rx_count >= fifo_size(serial)) {
		serial->now.lsr_errors |= LSR_OVERRUN;
		return;
	}
	serial->now.rx[serial->now.rx_count++] = byte;
}

static uint8_t take_received(struct serial *serial)
{
	struct serial_state *now = &serial->now;
	uint8_t byte = now->rx[0];

	if (now->rx_count == 0)
		return 0;
	now->rx_count--;
	memmove(now->rx, now->rx + 1, now->rx_count);
	return byte;
}

static void transmit(struct serial *serial, uint8_t byte)
{
	serial->now.thr_pending = 1;
	if (serial->now.mcr & MCR_LOOP)
		put_received(serial, byte);
	else
		chardev_write(serial->chardev, byte);
}

static void write_register(struct serial *serial, uint64_t offset, uint8_t value)
{
	struct serial_state *now = &serial->now;
	bool dlab = now->lcr & LCR_DLAB;

	switch (offset) {
	case DATA:
		if (dlab)
			now->dll = value;
		else
			transmit(serial, value);
		break;
	case IER:
		if (dlab) {
			now->dlm = value;
			break;
		}
		/* Switching it on while the transmitter is empty raises it at once. */
		if ((value & IER_TRANSMITTER) && !(now->ier & IER_TRANSMITTER))
			now->thr_pending = 1;
		now->ier = value & IER_MASK;
		break;
	case IIR_FCR:
		if ((value & FCR_CLEAR_RX) || ((value ^ now->fcr) & FCR_ENABLE))
			now->rx_count = 0;
		now->fcr = value & (FCR_ENABLE | 0xc0);
		break;
	case LCR:
		now->lcr = value;
		break;
	case MCR:
		now->mcr = value & MCR_MASK;
		break;
	case SCR:
		now->scr = value;
		break;
	default: /* LSR and MSR are read-only */
		break;
	}
}

static uint8_t modem_status(const struct serial *serial)
{
	uint8_t mcr = serial->now.mcr;

	if (!(mcr & MCR_LOOP))
		return MSR_CTS | MSR_DSR | MSR_DCD;
	/* DTR, RTS, OUT1, OUT2 come back as DSR, CTS, RI, DCD. */
	return (uint8_t)((mcr & 1) << 5 | (mcr & 2) << 3 | (mcr & 4) << 4 | (mcr & 8) << 4);
}

static uint8_t read_register(struct serial *serial, uint64_t offset, bool *room)
{
	struct serial_state *now = &serial->now;
	bool dlab = now->lcr & LCR_DLAB;
	uint8_t value;

	switch (offset) {
	case DATA:
		if (dlab)
			return now->dll;
		*room = now->rx_count > 0;
		return take_received(serial);
	case IER:
		return dlab ? now->dlm : now->ier;
	case IIR_FCR:
		value = interrupt(serial);
		if (value == IIR_TRANSMITTER)
			now->thr_pending = 0;
		return value | (now->fcr & FCR_ENABLE ? IIR_FIFOS : 0);
	case LCR:
		return now->lcr;
	case MCR:
		return now->mcr;
	case LSR:
		value = LSR_THRE | LSR_TEMT | now->lsr_errors | (now->rx_count ? LSR_DATA : 0);
		now->lsr_errors = 0;
		return value;
	case MSR:
		return modem_status(serial);
	default:
		return now->scr;
	}
}

static void access(void *opaque, uint64_t offset, bool write, uint64_t *value, unsigned int size)
{
	struct serial *serial = opaque;
	bool room = false;

	pthread_mutex_lock(&serial->lock);
	if (write)
		write_register(serial, offset, (uint8_t)*value);
	else
		*value = read_register(serial, offset, &room);
	update_line(serial);
	pthread_mutex_unlock(&serial->lock);
	if (room)
		chardev_room(serial->chardev);
}

size_t serial_room(void *opaque)
{
	struct serial *serial = opaque;
	size_t room;

	pthread_mutex_lock(&serial->lock);
	room = fifo_size(serial) > serial->now.rx_count ? fifo_size(serial) - serial->now.rx_count
							: 0;
	if (serial->held)
		room = 0;
	pthread_mutex_unlock(&serial->lock);
	return room;
}

void serial_receive(void *opaque, const uint8_t *data, size_t size)
{
	struct serial *serial = opaque;

	pthread_mutex_lock(&serial->lock);
	for (size_t i = 0; i < size; i++)
		put_received(serial, data[i]);
	update_line(serial);
	pthread_mutex_unlock(&serial->lock);
}

int serial_attach(struct serial *serial, const struct kvm_vm *vm, struct bus *ports,
		  const char *where, struct error **err)
{
	const struct chardev_sink sink = {serial_room, serial_receive, serial};
	int code;

	*serial = (struct serial){
		.vm = vm,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.now = fresh,
		.state = fresh,
		.held = true,
	};
	code = bus_add(ports, PORT_SERIAL, 8, "serial", access, serial, err);
	if (code == 0)
		code = chardev_open(&serial->chardev, where, &sink, err);
	return code;
}

void serial_detach(struct serial *serial)
{
	chardev_close(serial->chardev);
	serial->chardev = NULL;
}

struct state_object serial_object(struct serial *serial)
{
	return (struct state_object){.name = "serial",
				     .fields = fields,
				     .count = sizeof(fields) / sizeof(fields[0]),
				     .data = &serial->state};
}

void serial_reset(struct serial *serial)
{
	pthread_mutex_lock(&serial->lock);
	serial->now = fresh;
	update_line(serial);
	pthread_mutex_unlock(&serial->lock);
	chardev_room(serial->chardev);
}

void serial_hold(struct serial *serial, bool held)
{
	pthread_mutex_lock(&serial->lock);
	serial->held = held;
	pthread_mutex_unlock(&serial->lock);
	if (!held)
		chardev_room(serial->chardev);
}

void serial_save(struct serial *serial)
{
	pthread_mutex_lock(&serial->lock);
	serial->state = serial->now;
	pthread_mutex_unlock(&serial->lock);
}

void serial_load(struct serial *serial)
{
	pthread_mutex_lock(&serial->lock);
	serial->now = serial->state;
	if (serial->now.rx_count > SERIAL_FIFO)
		serial->now.rx_count = SERIAL_FIFO;
	serial->now.ier &= IER_MASK;
	serial->now.mcr &= MCR_MASK;
	serial->now.lsr_errors &= LSR_ERRORS;
	/* Said in any case: an earlier load may have left another level in KVM. */
	serial->line = line_level(serial);
	if (serial->vm)
		(void)kvm_vm_irq_line(serial->vm, IRQ_SERIAL, serial->line);
	pthread_mutex_unlock(&serial->lock);
}
