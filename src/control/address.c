/* SPDX-License-Identifier: Apache-2.0 */
#include "control/address.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include "base/cleanup.h"
#include "base/clock.h"

static int address_parse(const char *address, struct sockaddr_un *sun, struct error **err)
{
	const char *path = strncmp(address, "unix:", 5) ? address : address + 5;
	size_t length = strlen(path);

	if (!length)
		return error_set(err, -EINVAL, "'%s' names no path (write unix:PATH)", address);
	/* "tcp:..." is a mistake, not the name of a file. */
	if (path == address && path[strcspn(path, "/:")] == ':')
		return error_set(err, -EINVAL,
				 "'%s' is no control address: it is written unix:PATH", address);
	if (length >= sizeof(sun->sun_path))
		return error_set(err, -ENAMETOOLONG,
				 "the socket path '%s' is too long: %zu bytes, and 107 is the most",
				 path, length);
	memset(sun, 0, sizeof(*sun));
	sun->sun_family = AF_UNIX;
	memcpy(sun->sun_path, path, length);
	return 0;
}

void address_identity(const char *path, uint64_t *device, uint64_t *inode)
{
	struct stat status;

	*device = *inode = 0;
	if (lstat(path, &status))
		return;
	*device = status.st_dev;
	*inode = status.st_ino;
}

/* Removes the socket file of a process that is gone; nothing else. */
static int address_clear(const struct sockaddr_un *sun, struct error **err)
{
	struct stat status;
	cleanup_close int fd = -1;

	if (lstat(sun->sun_path, &status))
		return 0;
	if (!S_ISSOCK(status.st_mode))
		return error_set(err, -EADDRINUSE,
				 "'%s' exists and is no socket: remove it or choose another path",
				 sun->sun_path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return error_set_errno(err, -errno, "cannot make a socket");
	if (!connect(fd, (const struct sockaddr *)sun, sizeof(*sun)) || errno != ECONNREFUSED)
		return error_set(err, -EADDRINUSE,
				 "'%s' is in use, another process listens there: stop it or choose "
				 "another path",
				 sun->sun_path);
	unlink(sun->sun_path);
	return 0;
}

static int address_explain(const char *path, int code, struct error **err)
{
	const char *slash = strrchr(path, '/');

	if (code == -ENOENT && slash)
		return error_set(err, code,
				 "cannot listen on '%s': the folder '%.*s' does not exist, make it "
				 "first",
				 path, slash == path ? 1 : (int)(slash - path), path);
	return error_set_errno(err, code, "cannot listen on '%s'", path);
}

int address_listen(const char *address, char **path, int *out, struct error **err)
{
	struct sockaddr_un sun;
	cleanup_close int fd = -1;
	int result = address_parse(address, &sun, err);

	if (!result)
		result = address_clear(&sun, err);
	if (result)
		return result;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return error_set_errno(err, -errno, "cannot make a socket");
	/* On Linux the file that bind() makes takes its mode from the socket. */
	if (fchmod(fd, 0600) || bind(fd, (const struct sockaddr *)&sun, sizeof(sun)))
		return address_explain(sun.sun_path, -errno, err);
	if (listen(fd, 64)) {
		result = -errno;
		unlink(sun.sun_path);
		return address_explain(sun.sun_path, result, err);
	}
	*path = strdup(sun.sun_path);
	if (!*path)
		return error_set_errno(err, -ENOMEM, "cannot listen on '%s'", sun.sun_path);
	*out = steal_fd(&fd);
	return 0;
}

int address_connect(const char *address, uint64_t timeout_us, int *out, struct error **err)
{
	struct sockaddr_un sun;
	cleanup_close int fd = -1;
	uint64_t deadline = clock_us() + timeout_us;
	int result = address_parse(address, &sun, err);

	if (result)
		return result;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return error_set_errno(err, -errno, "cannot make a socket");
	while (connect(fd, (const struct sockaddr *)&sun, sizeof(sun))) {
		/* EAGAIN: the listener's backlog is full; there is no event to wait for. */
		if ((errno != EAGAIN && errno != EINTR) || clock_us() > deadline)
			return error_set_errno(err, -errno, "cannot connect to '%s'", sun.sun_path);
		usleep(2000);
	}
	*out = steal_fd(&fd);
	return 0;
}
