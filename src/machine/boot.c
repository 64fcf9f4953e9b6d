/* SPDX-License-Identifier: Apache-2.0 */
#include "machine/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/crc32c.h"
#include "guest/guest_elf.h"

/* Larger files are no kernel and no initrd, but a mistake. */
#define FILE_MAX (INT64_C(4) << 30)

static int read_file(const char *what, const char *path, uint8_t **data, size_t *size,
		     struct error **err)
{
	cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	cleanup_free uint8_t *bytes = NULL;
	struct stat status;
	size_t done = 0;

	if (fd < 0 || fstat(fd, &status) != 0)
		return error_set_errno(err, -errno, "%s: cannot open %s", what, path);
	if (!S_ISREG(status.st_mode))
		return error_set(err, -EINVAL, "%s: %s is not a regular file", what, path);
	if (status.st_size > FILE_MAX)
		return error_set(err, -EFBIG, "%s: %s is larger than 4 GiB", what, path);
	bytes = malloc((size_t)status.st_size + 1);
	if (!bytes)
		return error_set(err, -ENOMEM, "%s: no memory for %s", what, path);
	while (done < (size_t)status.st_size) {
		ssize_t got = read(fd, bytes + done, (size_t)status.st_size - done);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return error_set_errno(err, -errno, "%s: cannot read %s", what, path);
		if (got == 0)
			return error_set(err, -EIO, "%s: %s became shorter while it was read", what,
					 path);
		done += (size_t)got;
	}
	*data = steal_pointer(&bytes);
	*size = done;
	return 0;
}

static int read_kernel(struct boot *boot, const struct machine_config *config, struct error **err)
{
	const void *image = guest_elf_start;
	size_t size = (size_t)(guest_elf_end - guest_elf_start);
	int code;

	boot->builtin = config->guest != NULL;
	if (!boot->builtin) {
		code = read_file("kernel", config->kernel, &boot->kernel_file, &size, err);
		if (code < 0)
			return code;
		image = boot->kernel_file;
	}
	code = pvh_parse(&boot->kernel, image, size, err);
	if (code < 0)
		return error_prefix(err, "%s", boot->builtin ? "built-in guest" : config->kernel);
	boot->kernel_crc = crc32c(0, image, size);
	return 0;
}

/* The built-in guest runs on all vCPUs unless its arguments say otherwise. */
static char *guest_cmdline(const char *arguments, unsigned int cpus)
{
	char *text;

	if (cpus < 2 || strstr(arguments, "cpus="))
		return strdup(arguments);
	return asprintf(&text, "%s%scpus=%u", arguments, *arguments ? "," : "", cpus) < 0 ? NULL
											  : text;
}

static int check_cmdline(const char *text, struct error **err)
{
	for (const char *c = text; *c; c++)
		if (*c < ' ' || *c > '~')
			return error_set(
				err, -EINVAL,
				"the command line may have printable ASCII characters only");
	return 0;
}

int boot_read(struct boot *boot, const struct machine_config *config, struct error **err)
{
	int code = 0;

	*boot = (struct boot){0};
	if (config->guest && (config->kernel || config->initrd || config->append))
		return error_set(
			err, -EINVAL,
			"--guest starts the built-in guest: it takes no --kernel, --initrd "
			"or --append");
	if (!config->kernel && (config->initrd || config->append))
		return error_set(err, -EINVAL, "--initrd and --append need a --kernel");
	boot->cmdline = config->guest ? guest_cmdline(config->guest, config->cpus)
				      : strdup(config->append ? config->append : "");
	if (!boot->cmdline)
		return error_set(err, -ENOMEM, "no memory for the command line");
	code = check_cmdline(boot->cmdline, err);
	if (code == 0 && (config->kernel || config->guest))
		code = read_kernel(boot, config, err);
	if (code == 0 && config->initrd) {
		code = read_file("initrd", config->initrd, &boot->initrd, &boot->initrd_size, err);
		if (code == 0)
			boot->initrd_crc = crc32c(0, boot->initrd, boot->initrd_size);
	}
	if (code < 0)
		boot_free(boot);
	return code;
}

int boot_set_cmdline(struct boot *boot, const char *text, struct error **err)
{
	char *copy = strdup(text ? text : "");

	if (!copy)
		return error_set(err, -ENOMEM, "no memory for the command line");
	free(boot->cmdline);
	boot->cmdline = copy;
	return 0;
}

void boot_free(struct boot *boot)
{
	free(boot->kernel_file);
	free(boot->initrd);
	free(boot->cmdline);
	*boot = (struct boot){0};
}
