/* SPDX-License-Identifier: Apache-2.0 */
#include "migration/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/crc32c.h"

/* The file: magic, version, epoch, owner, CRC32C of all before it. One pwrite writes it whole. */
#define RECORD_MAGIC "GODWITOR"
#define RECORD_SIZE  48

struct record {
	uint64_t epoch;
	uint8_t owner[16];
};

static int record_read(int fd, struct record *record)
{
	uint8_t raw[RECORD_SIZE];
	ssize_t n = pread(fd, raw, sizeof(raw), 0);

	if (n < 0)
		return -errno;
	if (n != sizeof(raw) || memcmp(raw, RECORD_MAGIC, 8) != 0 || bytes_get_u32(raw + 8) != 1 ||
	    bytes_get_u32(raw + 44) != crc32c(0, raw, 44))
		return -EBADMSG;
	record->epoch = bytes_get_u64(raw + 16);
	memcpy(record->owner, raw + 24, 16);
	return 0;
}

/* A path that was mistyped must not cost the user a file: only what begins as a record is replaced.
 * An empty one is what a full disk leaves. */
static bool is_foreign(int fd)
{
	char magic[8];
	ssize_t n = pread(fd, magic, sizeof(magic), 0);

	return n != 0 && (n != sizeof(magic) || memcmp(magic, RECORD_MAGIC, 8) != 0);
}

static int record_write(struct owner_record *record, uint64_t epoch)
{
	uint8_t raw[RECORD_SIZE] = RECORD_MAGIC;

	bytes_put_u32(raw + 8, 1);
	bytes_put_u64(raw + 16, epoch);
	memcpy(raw + 24, record->self, 16);
	bytes_put_u32(raw + 44, crc32c(0, raw, 44));
	if (pwrite(record->fd, raw, sizeof(raw), 0) != sizeof(raw))
		return errno ? -errno : -EIO;
	if (record->durable && fdatasync(record->fd) < 0)
		return -errno;
	record->epoch = epoch;
	return 0;
}

static int set_lock(struct owner_record *record, short type)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET};

	if (fcntl(record->fd, F_OFD_SETLK, &lock) < 0)
		return errno == EACCES ? -EAGAIN : -errno;
	record->locked = type == F_WRLCK;
	return 0;
}

static bool is_held(int fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static int open_file(struct owner_record *record, const char *path, int flags, struct error **err)
{
	cleanup_close int fd = -1;

	struct stat info;

	*record = (struct owner_record){.fd = -1};
	if (strlen(path) >= sizeof(record->path))
		return error_set(err, -ENAMETOOLONG, "the owner record's path %s is too long",
				 path);
	strcpy(record->path, path);
	if (getrandom(record->self, sizeof(record->self), 0) != sizeof(record->self))
		return error_set_errno(err, -errno, "cannot get random bytes");
	/* The path may come from the stream, and opening a device can do things. */
	if (lstat(path, &info) == 0 && !S_ISREG(info.st_mode))
		return error_set(err, -EINVAL, "the owner record %s is no regular file", path);
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | flags, 0600);
	if (fd < 0)
		return error_set_errno(err, -errno, "cannot open the owner record %s", path);
	record->fd = steal_fd(&fd);
	return 0;
}

int owner_create(struct owner_record *record, const char *path, bool durable, struct error **err)
{
	struct stat by_fd, by_path;
	struct record found = {0};
	int status;

	/* The file may be unlinked by its last owner between the open and the lock: try again. */
	for (int attempt = 0; attempt < 10; attempt++) {
		status = open_file(record, path, O_CREAT, err);
		if (status < 0)
			return status;
		record->durable = durable;
		status = set_lock(record, F_WRLCK);
		if (status == -EAGAIN) {
			owner_close(record);
			return error_set(
				err, -EBUSY,
				"another process runs this guest (it holds %s); end it, or "
				"give this guest a UUID of its own",
				path);
		}
		if (status == 0 && fstat(record->fd, &by_fd) == 0 && stat(path, &by_path) == 0 &&
		    by_fd.st_ino == by_path.st_ino && by_fd.st_dev == by_path.st_dev)
			break;
		owner_close(record);
		status = -EAGAIN;
	}
	if (status == 0 && is_foreign(record->fd)) {
		record->locked = false; /* it is not ours to unlink */
		owner_close(record);
		return error_set(
			err, -EEXIST,
			"%s holds something else than an owner record; remove it or choose "
			"another path",
			path);
	}
	if (status == 0) {
		if (record_read(record->fd, &found) < 0)
			found.epoch = 0;
		status = record_write(record, found.epoch + 1);
	}
	if (status < 0) {
		owner_close(record);
		return error_set_errno(err, status, "cannot write the owner record %s", path);
	}
	return 0;
}

int owner_open(struct owner_record *record, const char *path, bool durable, const uint8_t owner[16],
	       uint64_t epoch, struct error **err)
{
	struct record found;
	int status = open_file(record, path, 0, err);

	if (status < 0)
		return status;
	record->durable = durable;
	status = record_read(record->fd, &found);
	if (status < 0 || found.epoch != epoch || memcmp(found.owner, owner, 16) != 0) {
		bool held = status == 0 && is_held(record->fd);

		owner_close(record);
		if (held)
			return error_set(err, -EBUSY,
					 "another process than the source runs this guest already "
					 "(it holds %s)",
					 path);
		return error_set(err, -ESTALE, "%s is not the record the source holds", path);
	}
	record->epoch = epoch;
	return 0;
}

void owner_unlock(struct owner_record *record)
{
	if (record->fd >= 0)
		set_lock(record, F_UNLCK);
}

int owner_lock(struct owner_record *record, uint64_t *found_epoch)
{
	struct record found;
	int status = set_lock(record, F_WRLCK);

	if (status == 0) {
		status = record_read(record->fd, &found);
		if (status == 0)
			*found_epoch = record->epoch = found.epoch;
		else
			owner_unlock(record);
	}
	return status;
}

bool owner_taken_by_other(const struct owner_record *record, uint64_t epoch)
{
	struct record found;

	return record_read(record->fd, &found) == 0 && found.epoch == epoch + 1 &&
	       memcmp(found.owner, record->self, sizeof(found.owner)) != 0;
}

int owner_advance(struct owner_record *record)
{
	return record->fd < 0 ? 0 : record_write(record, record->epoch + 1);
}

void owner_close(struct owner_record *record)
{
	if (record->fd < 0)
		return;
	if (record->locked)
		unlink(record->path);
	close(record->fd);
	record->fd = -1;
	record->locked = false;
}
