/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's description: what a source says, and what a destination makes of it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "arch/x86/probe.h"
#include "base/parse.h"
#include "machine/internal.h"

/* Command lines are longer than one value: parts "NAME.0", "NAME.1", ... */
#define PART 500

static const char *const devices[] = {"serial", "power", "cmos", "movegen"};
#define DEVICES (sizeof(devices) / sizeof(devices[0]))

static const char *const known_keys[] = {
	"machine.version", "machine.name", "machine.uuid",  "memory.size",   "memory.backing",
	"cpu.count",       "cpu.model",    "tsc.khz",       "kernel.source", "kernel.size",
	"kernel.crc32c",   "initrd.size",  "initrd.crc32c",
};
static const char *const known_prefixes[] = {"cpuid.", "msr.", "xsave.", "cmdline."};

static int add_boot(const struct boot *boot, struct description *d)
{
	char key[DESCRIPTION_MAX_KEY + 1];
	size_t length = strlen(boot->cmdline);
	int code;

	code = description_add(d, true, "kernel.source", "%s", boot->builtin ? "guest" : "file");
	if (code == 0)
		code = description_add(d, true, "kernel.size", "%zu", boot->kernel.size);
	if (code == 0)
		code = description_add(d, true, "kernel.crc32c", "0x%08" PRIx32, boot->kernel_crc);
	if (code == 0)
		code = description_add(d, true, "initrd.size", "%zu", boot->initrd_size);
	if (code == 0)
		code = description_add(d, true, "initrd.crc32c", "0x%08" PRIx32, boot->initrd_crc);
	for (size_t at = 0; code == 0 && at < length; at += PART) {
		snprintf(key, sizeof(key), "cmdline.%zu", at / PART);
		code = description_add(d, true, key, "%.*s", PART, boot->cmdline + at);
	}
	return code;
}

static int add_cpu(struct machine *machine, struct description *d)
{
	char key[DESCRIPTION_MAX_KEY + 1];
	int code = x86_cpuid_describe(&machine->cpuid, d);

	for (unsigned int i = 0; code == 0 && i < machine->layout.msr_count; i++) {
		snprintf(key, sizeof(key), "msr.0x%" PRIx32, machine->layout.msrs[i]);
		code = description_add(d, true, key, "1");
	}
	return code;
}

int machine_describe(struct machine *machine, struct description *d, struct error **err)
{
	const struct machine_config *config = &machine->config;
	char key[DESCRIPTION_MAX_KEY + 1];
	int code;

	code = description_add(d, true, "machine.version", "%d", MACHINE_VERSION);
	if (code == 0)
		code = description_add(d, false, "machine.name", "%s", config->name);
	if (code == 0)
		code = description_add(d, true, "machine.uuid", "%s", config->uuid);
	if (code == 0)
		code = description_add(d, true, "memory.size", "%" PRIu64, config->memory);
	if (code == 0)
		code = description_add(d, false, "memory.backing", "%s",
				       ram_backing_name(config->backing));
	if (code == 0)
		code = description_add(d, true, "cpu.count", "%u", config->cpus);
	if (code == 0)
		code = description_add(d, false, "cpu.model", "%s", config->cpu_model);
	if (code == 0)
		code = description_add(d, true, "tsc.khz", "%u", machine->platform.tsc_khz);
	for (size_t i = 0; code == 0 && i < DEVICES; i++) {
		snprintf(key, sizeof(key), "device.%s", devices[i]);
		code = description_add(d, true, key, "1");
	}
	if (code == 0)
		code = add_boot(&machine->boot, d);
	if (code == 0)
		code = add_cpu(machine, d);
	return code < 0 ? error_set_errno(err, code, "cannot describe the machine") : 0;
}

/* --- the destination's side --- */

static bool starts_with(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

static int check_key(const struct description_entry *entry, struct error **err)
{
	if (!entry->required)
		return 0;
	for (size_t i = 0; i < sizeof(known_keys) / sizeof(known_keys[0]); i++)
		if (strcmp(entry->key, known_keys[i]) == 0)
			return 0;
	for (size_t i = 0; i < sizeof(known_prefixes) / sizeof(known_prefixes[0]); i++)
		if (starts_with(entry->key, known_prefixes[i]))
			return 0;
	if (starts_with(entry->key, "device.")) {
		for (size_t i = 0; i < DEVICES; i++)
			if (strcmp(entry->key + strlen("device."), devices[i]) == 0)
				return 0;
		return error_set(err, -ENODEV,
				 "%s: the source has this device, this machine does "
				 "not",
				 entry->key);
	}
	return error_set(err, -ENOTSUP, "%s: the source requires this, and it is not known here",
			 entry->key);
}

static int get_number(const struct description *d, const char *key, uint64_t min, uint64_t max,
		      uint64_t *value, struct error **err)
{
	int code = description_get_number(d, key, value);

	if (code == -ENOENT)
		return error_set(err, -EPROTO, "%s: the source does not say it", key);
	if (code < 0 || *value < min || *value > max)
		return error_set(err, -EPROTO,
				 "%s: the source says \"%s\", a number from %" PRIu64 " to %" PRIu64
				 " is expected",
				 key, description_get(d, key), min, max);
	return 0;
}

static int adopt_sizes(const struct description *d, struct machine_config *config,
		       struct error **err)
{
	const char *backing = description_get(d, "memory.backing");
	char there[32], here[32];
	uint64_t version = 0, memory = 0, cpus = 0;
	int code;

	code = get_number(d, "machine.version", 1, UINT32_MAX, &version, err);
	if (code == 0 && version > MACHINE_VERSION)
		code = error_set(err, -ENOTSUP,
				 "machine.version: the source's machine is of version %" PRIu64
				 ", this program knows up to %d",
				 version, MACHINE_VERSION);
	if (code == 0)
		code = get_number(d, "memory.size", 1, INT64_MAX, &memory, err);
	if (code == 0 && config->memory && config->memory != memory)
		code = error_set(err, -EINVAL,
				 "memory.size: the source has %s, this machine was started with %s",
				 format_size(there, sizeof(there), memory),
				 format_size(here, sizeof(here), config->memory));
	if (code == 0)
		code = get_number(d, "cpu.count", 1, UINT32_MAX, &cpus, err);
	if (code == 0 && cpus > MACHINE_MAX_VCPUS)
		code = error_set(err, -ENOTSUP,
				 "cpu.count: the source has %" PRIu64 " vCPUs, at most %u are "
				 "possible here",
				 cpus, MACHINE_MAX_VCPUS);
	if (code == 0 && config->cpus && config->cpus != cpus)
		code = error_set(err, -EINVAL,
				 "cpu.count: the source has %" PRIu64
				 " vCPUs, this machine was started with %u",
				 cpus, config->cpus);
	if (code < 0)
		return code;
	config->memory = memory;
	config->cpus = (unsigned int)cpus;
	if (!config->backing_given && backing)
		code = ram_backing_parse(backing, &config->backing, err);
	return code < 0 ? error_prefix(err, "memory.backing") : 0;
}

static int adopt_text(const struct description *d, const char *key, bool compare, char **text,
		      struct error **err)
{
	const char *value = description_get(d, key);

	if (!value)
		return 0;
	if (*text && !compare)
		return 0;
	if (*text && strcmp(*text, value) != 0)
		return error_set(err, -EINVAL,
				 "%s: the source has \"%s\", this machine was started with \"%s\"",
				 key, value, *text);
	if (!*text)
		*text = strdup(value);
	return *text ? 0 : error_set(err, -ENOMEM, "no memory for the machine's options");
}

/* The command line put together from its parts; the caller frees it. */
static char *join_cmdline(const struct description *d)
{
	char key[DESCRIPTION_MAX_KEY + 1];
	char *text = calloc(1, PVH_CMDLINE_MAX + DESCRIPTION_MAX_VALUE + 1);
	size_t length = 0;

	for (unsigned int i = 0; text && length < PVH_CMDLINE_MAX; i++) {
		const char *part;

		snprintf(key, sizeof(key), "cmdline.%u", i);
		part = description_get(d, key);
		if (!part)
			break;
		strcpy(text + length, part);
		length += strlen(part);
	}
	return text;
}

static int compare_file(const struct description *d, const char *what, size_t size, uint32_t crc,
			const char *advice, struct error **err)
{
	char key[DESCRIPTION_MAX_KEY + 1];
	uint64_t there_size = 0, there_crc = 0;
	int code;

	snprintf(key, sizeof(key), "%s.size", what);
	code = get_number(d, key, 0, INT64_MAX, &there_size, err);
	snprintf(key, sizeof(key), "%s.crc32c", what);
	if (code == 0)
		code = get_number(d, key, 0, UINT32_MAX, &there_crc, err);
	if (code == 0 && (there_size != size || there_crc != crc))
		code = error_set(err, -EINVAL,
				 "%s: the source's has %" PRIu64 " bytes (CRC32C 0x%08" PRIx64
				 "), the one here %zu bytes (0x%08" PRIx32 "); %s",
				 what, there_size, there_crc, size, crc, advice);
	return code;
}

static int adopt_builtin(const struct description *d, struct machine_config *config,
			 const char *arguments, struct error **err)
{
	struct boot boot = {0};
	int code;

	if (config->kernel)
		return error_set(
			err, -EINVAL,
			"kernel.source: the source runs the built-in guest, this machine was "
			"started with --kernel");
	if (!config->guest)
		config->guest = strdup(arguments);
	code = config->guest ? boot_read(&boot, config, err)
			     : error_set(err, -ENOMEM, "no memory for the machine's options");
	if (code < 0)
		return code;
	if (!boot.cmdline || strcmp(boot.cmdline, arguments) != 0)
		code = error_set(
			err, -EINVAL,
			"cmdline: the source's built-in guest was started with \"%s\", this "
			"machine's with \"%s\"",
			arguments, boot.cmdline);
	else
		code = compare_file(d, "kernel", boot.kernel.size, boot.kernel_crc,
				    "the two programs have different built-in guests", err);
	boot_free(&boot);
	return code;
}

static int adopt_file(const struct machine *machine, const struct description *d,
		      struct machine_config *config, const char *cmdline, struct error **err)
{
	const struct boot *boot = &machine->boot;
	int code;

	if (!config->kernel)
		return error_set(err, -EINVAL,
				 "kernel: the source's guest was started from a kernel file; start "
				 "this machine with the same --kernel, which a reset needs");
	code = compare_file(d, "kernel", boot->kernel.size, boot->kernel_crc,
			    "start this machine with the same --kernel", err);
	if (code == 0)
		code = compare_file(d, "initrd", boot->initrd_size, boot->initrd_crc,
				    "start this machine with the same --initrd", err);
	if (code == 0 && config->append && strcmp(config->append, cmdline) != 0)
		code = error_set(
			err, -EINVAL,
			"cmdline: the source's kernel was started with \"%s\", this machine "
			"with --append \"%s\"",
			cmdline, config->append);
	if (code == 0 && !config->append) {
		config->append = strdup(cmdline);
		if (!config->append)
			code = error_set(err, -ENOMEM, "no memory for the machine's options");
	}
	return code;
}

static int adopt_boot(const struct machine *machine, const struct description *d,
		      struct machine_config *config, struct error **err)
{
	const char *source = description_get(d, "kernel.source");
	char *cmdline = join_cmdline(d);
	int code;

	if (!cmdline)
		code = error_set(err, -ENOMEM, "no memory for the command line");
	else if (source && strcmp(source, "guest") == 0)
		code = adopt_builtin(d, config, cmdline, err);
	else if (source && strcmp(source, "file") == 0)
		code = adopt_file(machine, d, config, cmdline, err);
	else
		code = error_set(err, -EPROTO,
				 "kernel.source: the source says \"%s\", file or guest "
				 "is expected",
				 source ? source : "");
	free(cmdline);
	return code;
}

/* What the processor's features do not tell: the rate of its TSC, and its MSRs. */
static int check_host(const struct machine *machine, const struct description *d,
		      const struct x86_cpuid *cpuid, struct error **err)
{
	struct x86_host host = {0};
	uint64_t khz = 0;
	int code = get_number(d, "tsc.khz", 0, UINT32_MAX, &khz, err);

	if (code == 0)
		code = x86_host_probe(&host, &machine->probe, cpuid, err);
	if (code < 0)
		return code;
	if (khz && host.tsc_khz && !host.tsc_scales &&
	    !x86_tsc_rates_agree((uint32_t)khz, host.tsc_khz))
		return error_set(err, -ENOTSUP,
				 "tsc.khz: the guest's time stamp counter runs at %" PRIu64
				 " kHz, this host's at %" PRIu32 ", and KVM cannot scale it here",
				 khz, host.tsc_khz);
	for (unsigned int i = 0; i < d->count; i++) {
		const char *key = d->entries[i].key;
		uint32_t index;

		if (!starts_with(key, "msr."))
			continue;
		if (sscanf(key, "msr.0x%8" SCNx32, &index) != 1 || !x86_host_has_msr(&host, index))
			return error_set(err, -ENOTSUP,
					 "%s: the guest has this register, which KVM on this host "
					 "does not offer",
					 key);
	}
	return 0;
}

int machine_adopt(struct machine *machine, const struct description *d,
		  struct machine_config *config, struct x86_cpuid *cpuid, struct error **err)
{
	int code = 0;

	for (unsigned int i = 0; code == 0 && i < d->count; i++)
		code = check_key(&d->entries[i], err);
	if (code == 0)
		code = adopt_sizes(d, config, err);
	if (code == 0)
		code = adopt_text(d, "machine.uuid", true, &config->uuid, err);
	if (code == 0)
		code = adopt_text(d, "machine.name", false, &config->name, err);
	if (code == 0)
		code = adopt_text(d, "cpu.model", true, &config->cpu_model, err);
	if (code == 0)
		code = machine_config_check(config, err);
	if (code == 0)
		code = machine_config_set_defaults(config, err);
	if (code == 0 && config->cpus > machine->system.max_vcpus)
		code = error_set(err, -ENOTSUP,
				 "cpu.count: the source has %u vCPUs, this host's KVM allows %u",
				 config->cpus, machine->system.max_vcpus);
	if (code == 0)
		code = adopt_boot(machine, d, config, err);
	if (code == 0)
		code = x86_cpuid_adopt(cpuid, &machine->host_cpuid, d, err);
	if (code == 0)
		code = check_host(machine, d, cpuid, err);
	return code;
}
