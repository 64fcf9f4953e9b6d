/* SPDX-License-Identifier: Apache-2.0 */
/* What is done with all devices of this process at once (those in KVM: arch/x86/platform.h). */
#include "machine/internal.h"

void machine_devices_save(struct machine *machine)
{
	serial_save(&machine->serial);
	power_save(&machine->power);
	cmos_save(&machine->cmos);
	movegen_save(&machine->movegen);
}

void machine_devices_load(struct machine *machine)
{
	serial_load(&machine->serial);
	power_load(&machine->power);
	cmos_load(&machine->cmos);
	movegen_load(&machine->movegen);
}

/* The move generation is the guest's history and outlives a reset. */
void machine_devices_reset(struct machine *machine)
{
	serial_reset(&machine->serial);
	power_reset(&machine->power);
	cmos_reset(&machine->cmos);
}
