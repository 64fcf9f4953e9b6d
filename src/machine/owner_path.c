/* SPDX-License-Identifier: Apache-2.0 */
#include "machine/owner_path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "machine/internal.h"

/* Makes the folder, or checks that it is ours: another user's could be swapped under us. */
static int make_folder(const char *path, struct error **err)
{
	struct stat status;

	if (mkdir(path, 0700) != 0 && errno != EEXIST)
		return error_set_errno(err, -errno,
				       "cannot make the folder %s for the owner record (give "
				       "--owner-record PATH or off)",
				       path);
	if (lstat(path, &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid())
		return error_set(
			err, -EPERM,
			"%s is not a folder of this user, so no place for the owner record "
			"(give --owner-record PATH or off)",
			path);
	return 0;
}

static int automatic_path(char *path, size_t size, const char *uuid, struct error **err)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	char folder[200];
	int length, code;

	if (runtime && *runtime == '/')
		length = snprintf(folder, sizeof(folder), "%s/godwit", runtime);
	else if (geteuid() == 0)
		length = snprintf(folder, sizeof(folder), "/run/godwit");
	else
		length =
			snprintf(folder, sizeof(folder), "/tmp/godwit-%u", (unsigned int)geteuid());
	if (length >= (int)sizeof(folder))
		return error_set(err, -ENAMETOOLONG, "XDG_RUNTIME_DIR is too long");
	code = make_folder(folder, err);
	if (code == 0 && snprintf(path, size, "%s/%s.owner", folder, uuid) >= (int)size)
		code = error_set(err, -ENAMETOOLONG, "the path of the owner record is too long");
	return code;
}

int owner_record_open(struct machine *machine, struct error **err)
{
	const char *wanted = machine->config.owner_record;
	char path[sizeof(machine->owner.path)];
	int code;

	if (wanted && strcmp(wanted, "off") == 0)
		return 0;
	if (wanted)
		return owner_create(&machine->owner, wanted, true, err);
	code = automatic_path(path, sizeof(path), machine->config.uuid, err);
	return code < 0 ? code : owner_create(&machine->owner, path, false, err);
}
