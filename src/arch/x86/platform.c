/* SPDX-License-Identifier: Apache-2.0 */
#include "arch/x86/platform.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>
#include "base/cleanup.h"
#include "base/clock.h"

#define PIC(member, name) STATE_FIELD(struct kvm_pic_state, member, STATE_U8, name)

static const struct state_field pic_fields[] = {
	PIC(last_irr, "last_irr"),
	PIC(irr, "irr"),
	PIC(imr, "imr"),
	PIC(isr, "isr"),
	PIC(priority_add, "priority_add"),
	PIC(irq_base, "irq_base"),
	PIC(read_reg_select, "read_reg_select"),
	PIC(poll, "poll"),
	PIC(special_mask, "special_mask"),
	PIC(init_state, "init_state"),
	PIC(auto_eoi, "auto_eoi"),
	PIC(rotate_on_auto_eoi, "rotate_on_auto_eoi"),
	PIC(special_fully_nested_mode, "special_fully_nested_mode"),
	PIC(init4, "init4"),
	PIC(elcr, "elcr"),
	PIC(elcr_mask, "elcr_mask"),
};

#define REDIRECTION(n)                                                                             \
	STATE_FIELD(struct kvm_ioapic_state, redirtbl[n].bits, STATE_U64, "redirection." #n)

static const struct state_field ioapic_fields[] = {
	STATE_FIELD(struct kvm_ioapic_state, base_address, STATE_U64, "base_address"),
	STATE_FIELD(struct kvm_ioapic_state, ioregsel, STATE_U32, "select"),
	STATE_FIELD(struct kvm_ioapic_state, id, STATE_U32, "id"),
	STATE_FIELD(struct kvm_ioapic_state, irr, STATE_U32, "irr"),
	REDIRECTION(0),
	REDIRECTION(1),
	REDIRECTION(2),
	REDIRECTION(3),
	REDIRECTION(4),
	REDIRECTION(5),
	REDIRECTION(6),
	REDIRECTION(7),
	REDIRECTION(8),
	REDIRECTION(9),
	REDIRECTION(10),
	REDIRECTION(11),
	REDIRECTION(12),
	REDIRECTION(13),
	REDIRECTION(14),
	REDIRECTION(15),
	REDIRECTION(16),
	REDIRECTION(17),
	REDIRECTION(18),
	REDIRECTION(19),
	REDIRECTION(20),
	REDIRECTION(21),
	REDIRECTION(22),
	REDIRECTION(23),
};

#define PIT(type, n, member)                                                                       \
	STATE_FIELD(struct kvm_pit_state2, channels[n].member, STATE_##type,                       \
		    "channel" #n "." #member)
#define PIT_CHANNEL(n)                                                                             \
	PIT(U32, n, count), PIT(U16, n, latched_count), PIT(U8, n, count_latched),                 \
		PIT(U8, n, status_latched), PIT(U8, n, status), PIT(U8, n, read_state),            \
		PIT(U8, n, write_state), PIT(U8, n, write_latch), PIT(U8, n, rw_mode),             \
		PIT(U8, n, mode), PIT(U8, n, bcd), PIT(U8, n, gate)

/* Without count_load_time, which KVM takes anew when the counter is loaded. */
static const struct state_field pit_fields[] = {
	PIT_CHANNEL(0),
	PIT_CHANNEL(1),
	PIT_CHANNEL(2),
	STATE_FIELD(struct kvm_pit_state2, flags, STATE_U32, "flags"),
};

#define CLOCK(member, type) STATE_FIELD(struct x86_clock, member, STATE_##type, #member)

static const struct state_field clock_fields[] = {
	CLOCK(kvmclock, U64), CLOCK(realtime_ns, U64), CLOCK(monotonic_ns, U64),
	CLOCK(host_tsc, U64), CLOCK(tsc_khz, U32),     CLOCK(boot_id, BYTES),
	CLOCK(running, U8),
};

#define OBJECT(name_, instance_, fields_, data_)                                                   \
	(struct state_object)                                                                      \
	{                                                                                          \
		.name = (name_), .instance = (instance_), .fields = (fields_),                     \
		.count = sizeof(fields_) / sizeof((fields_)[0]), .data = (data_)                   \
	}

void x86_platform_objects(struct x86_platform *platform, struct state_object *objects)
{
	objects[0] = OBJECT("pic", 0, pic_fields, &platform->pic[0]);
	objects[1] = OBJECT("pic", 1, pic_fields, &platform->pic[1]);
	objects[2] = OBJECT("ioapic", 0, ioapic_fields, &platform->ioapic);
	objects[3] = OBJECT("pit", 0, pit_fields, &platform->pit);
	objects[4] = OBJECT("clock", 0, clock_fields, &platform->clock);
}

static int part(struct x86_platform *platform, const char *name, int result)
{
	if (result >= 0)
		return 0;
	platform->failed = name;
	return -errno;
}

static int get_chip(struct x86_platform *platform, uint32_t id, const char *name, void *data,
		    size_t size)
{
	struct kvm_irqchip chip = {.chip_id = id};
	int code = part(platform, name, ioctl(platform->vm_fd, KVM_GET_IRQCHIP, &chip));

	if (code == 0)
		memcpy(data, &chip.chip, size);
	return code;
}

static int set_chip(struct x86_platform *platform, uint32_t id, const char *name, const void *data,
		    size_t size)
{
	struct kvm_irqchip chip = {.chip_id = id};

	memcpy(&chip.chip, data, size);
	return part(platform, name, ioctl(platform->vm_fd, KVM_SET_IRQCHIP, &chip));
}

int x86_platform_save(struct x86_platform *platform)
{
	int code;

	code = get_chip(platform, KVM_IRQCHIP_PIC_MASTER, "pic 0", &platform->pic[0],
			sizeof(platform->pic[0]));
	if (code == 0)
		code = get_chip(platform, KVM_IRQCHIP_PIC_SLAVE, "pic 1", &platform->pic[1],
				sizeof(platform->pic[1]));
	if (code == 0)
		code = get_chip(platform, KVM_IRQCHIP_IOAPIC, "ioapic", &platform->ioapic,
				sizeof(platform->ioapic));
	if (code == 0)
		code = part(platform, "pit", ioctl(platform->vm_fd, KVM_GET_PIT2, &platform->pit));
	return code;
}

static int load(struct x86_platform *platform, const struct kvm_pic_state *pic,
		const struct kvm_ioapic_state *ioapic, const struct kvm_pit_state2 *pit)
{
	int code;

	code = set_chip(platform, KVM_IRQCHIP_PIC_MASTER, "pic 0", &pic[0], sizeof(pic[0]));
	if (code == 0)
		code = set_chip(platform, KVM_IRQCHIP_PIC_SLAVE, "pic 1", &pic[1], sizeof(pic[1]));
	if (code == 0)
		code = set_chip(platform, KVM_IRQCHIP_IOAPIC, "ioapic", ioapic, sizeof(*ioapic));
	if (code == 0)
		code = part(platform, "pit",
			    ioctl(platform->vm_fd, KVM_SET_PIT2, (void *)(uintptr_t)pit));
	return code;
}

int x86_platform_load(struct x86_platform *platform)
{
	return load(platform, platform->pic, &platform->ioapic, &platform->pit);
}

int x86_platform_reset(struct x86_platform *platform)
{
	return load(platform, platform->fresh.pic, &platform->fresh.ioapic, &platform->fresh.pit);
}

/* This boot of this host, as 16 bytes; all zero when it cannot be told. */
static void read_boot_id(uint8_t id[16])
{
	cleanup_fclose FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
	char text[64] = "";
	unsigned int digits = 0;

	memset(id, 0, 16);
	if (!file || !fgets(text, sizeof(text), file))
		return;
	for (const char *c = text; *c && digits < 32; c++) {
		unsigned int value;

		if (sscanf((const char[]){*c, 0}, "%1x", &value) != 1)
			continue;
		id[digits / 2] = (uint8_t)(id[digits / 2] << 4 | value);
		digits++;
	}
}

void x86_platform_enable(const struct kvm_vm *vm)
{
	static const uint32_t wanted[] = {KVM_CAP_EXCEPTION_PAYLOAD,
					  KVM_CAP_X86_TRIPLE_FAULT_EVENT};

	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		struct kvm_enable_cap cap = {.cap = wanted[i], .args = {1}};

		if (kvm_vm_capability(vm, (int)wanted[i]))
			(void)ioctl(vm->fd, KVM_ENABLE_CAP, &cap);
	}
}

int x86_platform_init(struct x86_platform *platform, const struct kvm_vm *vm, int vcpu_fd,
		      struct error **err)
{
	int code, khz;

	*platform = (struct x86_platform){.vm_fd = vm->fd};
	code = x86_platform_save(platform);
	if (code < 0)
		return error_set_errno(err, code, "KVM does not tell the state of the %s",
				       platform->failed);
	memcpy(platform->fresh.pic, platform->pic, sizeof(platform->pic));
	platform->fresh.ioapic = platform->ioapic;
	platform->fresh.pit = platform->pit;
	read_boot_id(platform->boot_id);
	khz = ioctl(vcpu_fd, KVM_GET_TSC_KHZ, 0);
	platform->tsc_khz = khz > 0 ? (uint32_t)khz : 0;
	return 0;
}

static uint64_t realtime_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int x86_clock_read(struct x86_platform *platform, bool running)
{
	struct x86_clock *clock = &platform->clock;
	struct kvm_clock_data data = {0};
	int code = part(platform, "clock", ioctl(platform->vm_fd, KVM_GET_CLOCK, &data));

	if (code < 0)
		return code;
	clock->host_tsc = __rdtsc();
	clock->monotonic_ns = clock_ns();
	clock->realtime_ns = realtime_ns();
	clock->kvmclock = data.clock;
	clock->tsc_khz = platform->tsc_khz;
	clock->running = running;
	memcpy(clock->boot_id, platform->boot_id, sizeof(clock->boot_id));
	return 0;
}

static bool same_host(const struct x86_platform *platform)
{
	static const uint8_t unknown[16];

	return memcmp(platform->boot_id, unknown, sizeof(unknown)) != 0 &&
	       memcmp(platform->boot_id, platform->clock.boot_id, sizeof(unknown)) == 0;
}

/* Nanoseconds since the clock pair was taken; 0 when it lies in the future. */
static uint64_t elapsed_ns(const struct x86_platform *platform)
{
	const struct x86_clock *clock = &platform->clock;
	uint64_t now = same_host(platform) ? clock_ns() : realtime_ns();
	uint64_t then = same_host(platform) ? clock->monotonic_ns : clock->realtime_ns;

	return now > then ? now - then : 0;
}

int64_t x86_clock_tsc_adjust(const struct x86_platform *platform)
{
	const struct x86_clock *clock = &platform->clock;
	uint64_t elapsed, now;

	/* One host has one TSC: a guest whose offset stays sees it go on exactly. */
	if (same_host(platform))
		return 0;
	now = __rdtsc();
	elapsed = clock->running ? elapsed_ns(platform) : 0;
	return (int64_t)(clock->host_tsc - now +
			 (uint64_t)((unsigned __int128)elapsed * clock->tsc_khz / 1000000));
}

int x86_clock_start(struct x86_platform *platform, bool advance)
{
	struct kvm_clock_data data = {.clock = platform->clock.kvmclock};

	if (advance)
		data.clock += elapsed_ns(platform);
	return part(platform, "clock", ioctl(platform->vm_fd, KVM_SET_CLOCK, &data));
}
