/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "machine/internal.h"

void machine_config_free(struct machine_config *config)
{
	free(config->name);
	free(config->uuid);
	free(config->cpu_model);
	free(config->kernel);
	free(config->initrd);
	free(config->append);
	free(config->guest);
	free(config->serial);
	free(config->incoming);
	free(config->owner_record);
	*config = (struct machine_config){0};
}

static int copy_text(char **to, const char *from)
{
	*to = from ? strdup(from) : NULL;
	return from && !*to ? -ENOMEM : 0;
}

int machine_config_copy(struct machine_config *to, const struct machine_config *from)
{
	int code = 0;

	*to = *from;
	to->name = to->uuid = to->cpu_model = to->kernel = to->initrd = NULL;
	to->append = to->guest = to->serial = to->incoming = to->owner_record = NULL;
	code |= copy_text(&to->name, from->name);
	code |= copy_text(&to->uuid, from->uuid);
	code |= copy_text(&to->cpu_model, from->cpu_model);
	code |= copy_text(&to->kernel, from->kernel);
	code |= copy_text(&to->initrd, from->initrd);
	code |= copy_text(&to->append, from->append);
	code |= copy_text(&to->guest, from->guest);
	code |= copy_text(&to->serial, from->serial);
	code |= copy_text(&to->incoming, from->incoming);
	code |= copy_text(&to->owner_record, from->owner_record);
	if (code == 0)
		return 0;
	machine_config_free(to);
	return -ENOMEM;
}

/* RFC 4122's text form. */
static bool is_uuid(const char *text)
{
	for (int i = 0; i < 36; i++) {
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;

		if (dash ? text[i] != '-' : !isxdigit((unsigned char)text[i]))
			return false;
	}
	return text[36] == '\0';
}

static char *random_uuid(void)
{
	uint8_t b[16];
	char text[37];

	if (getrandom(b, sizeof(b), 0) != sizeof(b))
		return NULL;
	b[6] = (b[6] & 0x0f) | 0x40;
	b[8] = (b[8] & 0x3f) | 0x80;
	snprintf(text, sizeof(text),
		 "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
		 b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
		 b[15]);
	return strdup(text);
}

static bool is_name(const char *text)
{
	size_t length = strlen(text);

	if (length == 0 || length > 255)
		return false;
	for (size_t i = 0; i < length; i++)
		if (text[i] < ' ' || text[i] > '~')
			return false;
	return true;
}

int machine_config_check(const struct machine_config *config, struct error **err)
{
	if (config->uuid && !is_uuid(config->uuid))
		return error_set(err, -EINVAL, "\"%s\" is no UUID (8-4-4-4-12 hexadecimal digits)",
				 config->uuid);
	if (config->name && !is_name(config->name))
		return error_set(err, -EINVAL, "--name takes 1 to 255 printable ASCII characters");
	if (config->cpus > MACHINE_MAX_VCPUS)
		return error_set(err, -EINVAL, "%u vCPUs are not possible, 1 to %u are",
				 config->cpus, MACHINE_MAX_VCPUS);
	if (config->cpu_model && strcmp(config->cpu_model, "host") != 0 &&
	    strcmp(config->cpu_model, "baseline") != 0)
		return error_set(err, -EINVAL, "unknown CPU model \"%s\": host or baseline",
				 config->cpu_model);
	if (!config->incoming && !config->kernel && !config->guest)
		return error_set(err, -EINVAL,
				 "nothing to start: give --kernel FILE, --guest ARGUMENTS, or "
				 "--incoming URI");
	return 0;
}

static int default_text(char **text, const char *value)
{
	if (!*text)
		*text = value ? strdup(value) : NULL;
	return *text ? 0 : -ENOMEM;
}

int machine_config_set_defaults(struct machine_config *config, struct error **err)
{
	int code = 0;

	if (!config->uuid)
		config->uuid = random_uuid();
	if (!config->uuid)
		code = -ENOMEM;
	code |= default_text(&config->name, "guest");
	code |= default_text(&config->cpu_model, "host");
	if (config->memory == 0)
		config->memory = UINT64_C(256) << 20;
	if (config->cpus == 0)
		config->cpus = 1;
	return code ? error_set(err, -ENOMEM, "no memory for the machine's options") : 0;
}
