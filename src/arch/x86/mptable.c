/* SPDX-License-Identifier: Apache-2.0 */
#include "arch/x86/mptable.h"

#include <errno.h>
#include <string.h>

#define MAX_CPUS    64
#define IOAPIC_ID   (MAX_CPUS + 1) /* no processor has it */
#define IOAPIC_BASE 0xfec00000u
#define LAPIC_BASE  0xfee00000u
#define ISA_IRQS    16
#define PIT_PIN     2 /* KVM's default routing: IRQ 0 comes in at pin 2 */

#define ENTRY_PROCESSOR   0
#define ENTRY_BUS         1
#define ENTRY_IOAPIC      2
#define ENTRY_IO_IRQ      3
#define ENTRY_LOCAL_IRQ   4
#define PROCESSOR_ENABLED 1
#define PROCESSOR_BOOT    2
#define IRQ_INT           0
#define IRQ_NMI           1
#define IRQ_EXTINT        3
#define VERSION_1_4       4
#define APIC_VERSION      0x14
#define IOAPIC_VERSION    0x11
#define ALL_LAPICS        0xff

struct pointer {
	char signature[4];
	uint32_t table;
	uint8_t length, version, checksum, features[5];
};

struct header {
	char signature[4];
	uint16_t length;
	uint8_t version, checksum;
	char oem[8], product[12];
	uint32_t oem_table;
	uint16_t oem_size, entries;
	uint32_t lapic;
	uint16_t extended_length;
	uint8_t extended_checksum, reserved;
};

struct processor {
	uint8_t type, apic_id, apic_version, flags;
	uint32_t signature, features, reserved[2];
};

struct bus_entry {
	uint8_t type, id;
	char name[6];
};

struct ioapic {
	uint8_t type, id, version, flags;
	uint32_t address;
};

struct irq {
	uint8_t type, kind;
	uint16_t flags;
	uint8_t bus, bus_irq, apic, pin;
};

_Static_assert(sizeof(struct pointer) == 16 && sizeof(struct header) == 44 &&
		       sizeof(struct processor) == 20 && sizeof(struct bus_entry) == 8 &&
		       sizeof(struct ioapic) == 8 && sizeof(struct irq) == 8,
	       "sizes of the specification");

/* The table grows in a buffer of its own. */
struct builder {
	uint8_t bytes[MPTABLE_END - MPTABLE_START];
	size_t size;
	uint16_t entries;
};

static void add(struct builder *builder, const void *entry, size_t size)
{
	memcpy(builder->bytes + builder->size, entry, size);
	builder->size += size;
	builder->entries++;
}

static void add_irq(struct builder *builder, uint8_t type, uint8_t kind, uint8_t bus_irq,
		    uint8_t apic, uint8_t pin)
{
	const struct irq irq = {
		.type = type, .kind = kind, .bus_irq = bus_irq, .apic = apic, .pin = pin};

	add(builder, &irq, sizeof(irq));
}

static uint8_t checksum(const void *data, size_t size)
{
	uint8_t sum = 0;

	for (size_t i = 0; i < size; i++)
		sum = (uint8_t)(sum + ((const uint8_t *)data)[i]);
	return (uint8_t)-sum;
}

static void add_entries(struct builder *builder, unsigned int cpus)
{
	const struct bus_entry isa = {ENTRY_BUS, 0, {'I', 'S', 'A', ' ', ' ', ' '}};
	const struct ioapic ioapic = {ENTRY_IOAPIC, IOAPIC_ID, IOAPIC_VERSION, 1, IOAPIC_BASE};

	for (unsigned int i = 0; i < cpus; i++) {
		const struct processor processor = {
			.type = ENTRY_PROCESSOR,
			.apic_id = (uint8_t)i,
			.apic_version = APIC_VERSION,
			.flags = (uint8_t)(PROCESSOR_ENABLED | (i == 0 ? PROCESSOR_BOOT : 0)),
			.signature = 0x600,
			.features = 0x201, /* FPU, APIC */
		};

		add(builder, &processor, sizeof(processor));
	}
	add(builder, &isa, sizeof(isa));
	add(builder, &ioapic, sizeof(ioapic));
	for (uint8_t irq = 0; irq < ISA_IRQS; irq++)
		if (irq != 2) /* the second PIC's line */
			add_irq(builder, ENTRY_IO_IRQ, IRQ_INT, irq, IOAPIC_ID,
				irq == 0 ? PIT_PIN : irq);
	add_irq(builder, ENTRY_LOCAL_IRQ, IRQ_EXTINT, 0, ALL_LAPICS, 0);
	add_irq(builder, ENTRY_LOCAL_IRQ, IRQ_NMI, 0, ALL_LAPICS, 1);
}

int mptable_write(struct ram *ram, unsigned int cpus, struct error **err)
{
	struct builder builder = {.size = sizeof(struct pointer) + sizeof(struct header)};
	struct pointer pointer = {
		.signature = "_MP_",
		.table = MPTABLE_START + sizeof(struct pointer),
		.length = 1, /* in units of 16 bytes */
		.version = VERSION_1_4,
	};
	struct header header = {
		.signature = "PCMP",
		.version = VERSION_1_4,
		.oem = "GODWIT  ",
		.product = {'G', 'O', 'D', 'W', 'I', 'T', ' ', ' ', ' ', ' ', ' ', ' '},
		.lapic = LAPIC_BASE,
	};
	int code;

	add_entries(&builder, cpus);
	header.entries = builder.entries;
	header.length = (uint16_t)(builder.size - sizeof(pointer));
	memcpy(builder.bytes + sizeof(pointer), &header, sizeof(header));
	header.checksum = checksum(builder.bytes + sizeof(pointer), header.length);
	memcpy(builder.bytes + sizeof(pointer), &header, sizeof(header));
	pointer.checksum = checksum(&pointer, sizeof(pointer));
	memcpy(builder.bytes, &pointer, sizeof(pointer));
	code = ram_write(ram, MPTABLE_START, builder.bytes, builder.size);
	return code < 0 ? error_set_errno(err, code, "cannot write the processor table") : 0;
}
