/* SPDX-License-Identifier: Apache-2.0 */
#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"

/* Waits until fd can move bytes (or has an error to show): 0, -ETIMEDOUT or another errno. */
static int io_wait(int fd, short events, uint64_t deadline_us)
{
	struct pollfd waiter = {.fd = fd, .events = events};

	for (;;) {
		struct timespec timeout;
		uint64_t now = clock_us(), left = deadline_us > now ? deadline_us - now : 0;
		int ready;

		timeout.tv_sec = (time_t)(left / 1000000);
		timeout.tv_nsec = (long)(left % 1000000 * 1000);
		ready = ppoll(&waiter, 1, deadline_us == IO_NO_DEADLINE ? NULL : &timeout, NULL);
		if (ready > 0)
			return waiter.revents & POLLNVAL ? -EBADF : 0;
		if (ready == 0)
			return -ETIMEDOUT;
		if (errno != EINTR)
			return -errno;
	}
}

/*
 * How one transfer is made without blocking. Sockets have a flag for it. All else is waited for
 * first; a blocking pipe or terminal that is ready for output takes PIPE_BUF bytes without
 * blocking, though maybe not more.
 */
struct io_kind {
	bool is_socket;
	size_t write_limit;
};

static struct io_kind io_kind_of(int fd)
{
	struct stat status;

	if (fstat(fd, &status) < 0 || S_ISREG(status.st_mode) || S_ISBLK(status.st_mode))
		return (struct io_kind){.write_limit = SSIZE_MAX};
	return (struct io_kind){.is_socket = S_ISSOCK(status.st_mode), .write_limit = PIPE_BUF};
}

static ssize_t io_read_once(int fd, struct io_kind kind, void *data, size_t length,
			    uint64_t deadline_us)
{
	int result;

	if (kind.is_socket)
		return recv(fd, data, length, MSG_DONTWAIT);
	result = io_wait(fd, POLLIN, deadline_us);
	if (result < 0) {
		errno = -result;
		return -1;
	}
	return read(fd, data, length);
}

static ssize_t io_write_once(int fd, struct io_kind kind, const void *data, size_t length,
			     uint64_t deadline_us)
{
	int result;

	if (kind.is_socket)
		return send(fd, data, length, MSG_DONTWAIT | MSG_NOSIGNAL);
	result = io_wait(fd, POLLOUT, deadline_us);
	if (result < 0) {
		errno = -result;
		return -1;
	}
	return write(fd, data, length < kind.write_limit ? length : kind.write_limit);
}

/* After a transfer that moved nothing: 0 to try again, or the error. Call with errno as it was. */
static int io_retry(int fd, short events, uint64_t deadline_us)
{
	if (errno == EINTR)
		return 0;
	if (errno == EAGAIN || errno == EWOULDBLOCK)
		return io_wait(fd, events, deadline_us);
	return -errno;
}

int io_read_full(int fd, void *data, size_t length, uint64_t deadline_us, struct error **err)
{
	struct io_kind kind = io_kind_of(fd);
	size_t done = 0;

	while (done < length) {
		ssize_t moved =
			io_read_once(fd, kind, (char *)data + done, length - done, deadline_us);
		int result;

		if (moved > 0) {
			done += (size_t)moved;
			continue;
		}
		if (moved == 0 && done == 0)
			return error_set(err, -ENODATA, "the other side closed the connection");
		if (moved == 0)
			return error_set(err, -ECONNRESET,
					 "the connection ended after %zu of %zu bytes", done,
					 length);
		result = io_retry(fd, POLLIN, deadline_us);
		if (result == -ETIMEDOUT)
			return error_set(err, result,
					 "the other side sent only %zu of %zu bytes in time", done,
					 length);
		if (result < 0)
			return error_set_errno(err, result, "cannot read %zu bytes", length);
	}
	return 0;
}

int io_write_full(int fd, const void *data, size_t length, uint64_t deadline_us, struct error **err)
{
	struct io_kind kind = io_kind_of(fd);
	size_t done = 0;

	while (done < length) {
		ssize_t moved = io_write_once(fd, kind, (const char *)data + done, length - done,
					      deadline_us);
		int result;

		if (moved > 0) {
			done += (size_t)moved;
			continue;
		}
		result = moved == 0 ? -EIO : io_retry(fd, POLLOUT, deadline_us);
		if (result == -ETIMEDOUT)
			return error_set(err, result,
					 "the other side took only %zu of %zu bytes in time", done,
					 length);
		if (result < 0)
			return error_set_errno(err, result, "cannot write %zu bytes", length);
	}
	return 0;
}

int io_inherited_fd(const char *number, struct error **err)
{
	char *end;
	long fd = strtol(number, &end, 10);
	int flags =
		*end || end == number || fd < 0 || fd > INT32_MAX ? -1 : fcntl((int)fd, F_GETFD);
	int copy;

	if (flags < 0 || (flags & FD_CLOEXEC))
		return error_set(
			err, -EBADF,
			"File descriptor %.32s was not handed to this process at its start",
			number);
	copy = fcntl((int)fd, F_DUPFD_CLOEXEC, 3);
	return copy >= 0 ? copy : error_set_errno(err, -errno, "cannot use descriptor %s", number);
}
