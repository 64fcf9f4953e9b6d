/* SPDX-License-Identifier: Apache-2.0 */
#include "device/power.h"

#include "device/ports.h"

#define SLEEP_CONTROL 0
#define RESET         2
#define BUTTON        3

/* ACPI 6.5, 4.8.3.7: SLP_EN is bit 5, SLP_TYP bits 2 to 4; S5 is type 5 here. */
#define SLEEP_ENABLE 0x20u
#define SLEEP_TYPE   0x1cu
#define SLEEP_S5     (5u << 2)

static const struct state_field fields[] = {
	STATE_FIELD(struct power_state, button, STATE_U8, "button"),
};

static uint8_t take_button(struct power *power)
{
	uint8_t button;

	pthread_mutex_lock(&power->lock);
	button = power->now.button;
	power->now.button = 0;
	pthread_mutex_unlock(&power->lock);
	return button;
}

static void access_power(void *opaque, uint64_t offset, bool write, uint64_t *value,
			 unsigned int size)
{
	struct power *power = opaque;

	if (!write) {
		*value = offset == BUTTON ? take_button(power) : 0;
	} else if (offset == SLEEP_CONTROL && (*value & SLEEP_ENABLE)) {
		if ((*value & SLEEP_TYPE) == SLEEP_S5)
			power->listener(power->opaque, POWER_OFF);
	} else if (offset == RESET && *value == 1) {
		power->listener(power->opaque, POWER_RESET);
	}
}

static void access_reset_control(void *opaque, uint64_t offset, bool write, uint64_t *value,
				 unsigned int size)
{
	struct power *power = opaque;

	if (!write)
		*value = 0;
	else if (*value & 4)
		power->listener(power->opaque, POWER_RESET);
}

static void access_keyboard(void *opaque, uint64_t offset, bool write, uint64_t *value,
			    unsigned int size)
{
	struct power *power = opaque;

	if (!write)
		*value = 0;
	else if (*value == 0xfe)
		power->listener(power->opaque, POWER_RESET);
}

int power_attach(struct power *power, const struct kvm_vm *vm, struct bus *ports,
		 power_listener *listener, void *opaque, struct error **err)
{
	int code;

	*power = (struct power){
		.vm = vm,
		.listener = listener,
		.opaque = opaque,
		.lock = PTHREAD_MUTEX_INITIALIZER,
	};
	code = bus_add(ports, PORT_POWER, 4, "power", access_power, power, err);
	if (code == 0)
		code = bus_add(ports, PORT_RESET_CONTROL, 1, "reset control", access_reset_control,
			       power, err);
	if (code == 0)
		code = bus_add(ports, PORT_KEYBOARD_COMMAND, 1, "keyboard controller",
			       access_keyboard, power, err);
	return code;
}

struct state_object power_object(struct power *power)
{
	return (struct state_object){.name = "power",
				     .fields = fields,
				     .count = sizeof(fields) / sizeof(fields[0]),
				     .data = &power->state};
}

void power_press_button(struct power *power)
{
	pthread_mutex_lock(&power->lock);
	power->now.button = 1;
	pthread_mutex_unlock(&power->lock);
	(void)kvm_vm_irq_pulse(power->vm, IRQ_POWER);
}

void power_reset(struct power *power)
{
	pthread_mutex_lock(&power->lock);
	power->now = (struct power_state){0};
	pthread_mutex_unlock(&power->lock);
}

void power_save(struct power *power)
{
	pthread_mutex_lock(&power->lock);
	power->state = power->now;
	pthread_mutex_unlock(&power->lock);
}

void power_load(struct power *power)
{
	pthread_mutex_lock(&power->lock);
	power->now.button = power->state.button & 1;
	pthread_mutex_unlock(&power->lock);
}
