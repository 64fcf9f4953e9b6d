/* SPDX-License-Identifier: Apache-2.0 */
#include "device/chardev.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/cleanup.h"
#include "base/log.h"

/* A line is written in one go: the thread waits so long for its end. */
#define GATHER_MS 5
/* Never more than a pipe takes at once when poll() says it has room. */
#define WRITE_MAX 4096
/* A client that cannot be let in for want of a descriptor is tried again so much later. */
#define ACCEPT_PAUSE_MS 100

struct chardev {
	struct chardev_sink sink;
	pthread_t thread;
	int wake;       /* eventfd */
	int listen_fd;  /* unix: else -1 */
	int input_fd;   /* -1: nothing to read from */
	int output_fd;  /* -1: nobody to write to */
	bool is_socket; /* input_fd and output_fd are one client */
	bool owned;     /* output_fd is to be closed */
	bool full;      /* the disk was full at the last write, and that has been said */
	char socket_path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	_Atomic(bool) quit;

	pthread_mutex_t lock; /* the ring */
	uint8_t ring[CHARDEV_BUFFER];
	size_t start, used;
	bool urgent; /* a whole line, or much, is waiting */
};

static void wake(struct chardev *chardev)
{
	uint64_t one = 1;

	while (write(chardev->wake, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

void chardev_room(struct chardev *chardev)
{
	if (chardev)
		wake(chardev);
}

void chardev_write(struct chardev *chardev, uint8_t byte)
{
	bool first, now;

	if (!chardev)
		return;
	pthread_mutex_lock(&chardev->lock);
	first = chardev->used == 0;
	if (chardev->used == CHARDEV_BUFFER) {
		chardev->start = (chardev->start + 1) % CHARDEV_BUFFER;
		chardev->used--;
	}
	chardev->ring[(chardev->start + chardev->used++) % CHARDEV_BUFFER] = byte;
	now = !chardev->urgent && (byte == '\n' || chardev->used >= WRITE_MAX);
	if (now)
		chardev->urgent = true;
	pthread_mutex_unlock(&chardev->lock);
	if (first || now)
		wake(chardev);
}

static void drop_output(struct chardev *chardev)
{
	if (chardev->is_socket || chardev->owned)
		close(chardev->output_fd);
	chardev->output_fd = -1;
	if (chardev->is_socket)
		chardev->input_fd = -1;
}

/* A full disk may have room again later: what came meanwhile is lost, the line is not. */
static bool disk_is_full(struct chardev *chardev, int code)
{
	if (chardev->is_socket || (code != ENOSPC && code != EDQUOT && code != EFBIG))
		return false;
	if (!chardev->full)
		log_warning("serial: cannot write (%s): the guest runs on, and its output is "
			    "dropped until there is room",
			    strerror(code));
	chardev->full = true;
	return true;
}

/* Writes one piece; true when more could follow. */
static bool write_some(struct chardev *chardev)
{
	uint8_t piece[WRITE_MAX];
	size_t size;
	ssize_t done;

	pthread_mutex_lock(&chardev->lock);
	size = chardev->used < sizeof(piece) ? chardev->used : sizeof(piece);
	for (size_t i = 0; i < size; i++)
		piece[i] = chardev->ring[(chardev->start + i) % CHARDEV_BUFFER];
	chardev->start = (chardev->start + size) % CHARDEV_BUFFER;
	chardev->used -= size;
	chardev->urgent = chardev->used > 0;
	pthread_mutex_unlock(&chardev->lock);
	if (size == 0)
		return false;

	if (chardev->is_socket)
		done = send(chardev->output_fd, piece, size, MSG_DONTWAIT | MSG_NOSIGNAL);
	else
		done = write(chardev->output_fd, piece, size);
	if (done < 0 && disk_is_full(chardev, errno))
		return true;
	if (done > 0)
		chardev->full = false;
	if (done < 0 && errno != EINTR && errno != EAGAIN) {
		/* A client that went away, a closed pipe: nobody reads any more. */
		drop_output(chardev);
		return false;
	}
	if (done < 0)
		done = 0;
	if ((size_t)done == size)
		return true;

	/* Put back what was not taken, unless newer bytes have filled the ring meanwhile. */
	pthread_mutex_lock(&chardev->lock);
	for (size_t i = size; i > (size_t)done && chardev->used < CHARDEV_BUFFER; i--) {
		chardev->start = (chardev->start + CHARDEV_BUFFER - 1) % CHARDEV_BUFFER;
		chardev->ring[chardev->start] = piece[i - 1];
		chardev->used++;
	}
	chardev->urgent = chardev->used > 0;
	pthread_mutex_unlock(&chardev->lock);
	return done > 0;
}

static void read_some(struct chardev *chardev, size_t room)
{
	uint8_t data[64];
	ssize_t size;

	size = read(chardev->input_fd, data, room < sizeof(data) ? room : sizeof(data));
	if (size > 0)
		chardev->sink.receive(chardev->sink.opaque, data, (size_t)size);
	else if (size < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	else if (chardev->is_socket)
		drop_output(chardev);
	else
		chardev->input_fd = -1;
}

static void accept_client(struct chardev *chardev)
{
	int fd = accept4(chardev->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0 && errno != EAGAIN)
		poll(NULL, 0, ACCEPT_PAUSE_MS); /* it stays readable: no busy loop */
	if (fd < 0)
		return;
	chardev->input_fd = chardev->output_fd = fd;
	chardev->is_socket = true;
}

static void poll_once(struct chardev *chardev)
{
	size_t room = chardev->sink.room(chardev->sink.opaque);
	bool pending, urgent;
	struct pollfd fds[4];
	uint64_t count;

	pthread_mutex_lock(&chardev->lock);
	pending = chardev->used > 0;
	urgent = chardev->urgent;
	pthread_mutex_unlock(&chardev->lock);

	fds[0] = (struct pollfd){.fd = chardev->wake, .events = POLLIN};
	fds[1] = (struct pollfd){.fd = room ? chardev->input_fd : -1, .events = POLLIN};
	fds[2] = (struct pollfd){.fd = chardev->output_fd < 0 ? chardev->listen_fd : -1,
				 .events = POLLIN};
	fds[3] = (struct pollfd){.fd = urgent ? chardev->output_fd : -1, .events = POLLOUT};
	if (poll(fds, 4, pending && !urgent && chardev->output_fd >= 0 ? GATHER_MS : -1) == 0) {
		pthread_mutex_lock(&chardev->lock);
		chardev->urgent = chardev->used > 0; /* no line's end has come: as it is, then */
		pthread_mutex_unlock(&chardev->lock);
		return;
	}
	if (fds[0].revents)
		(void)!read(chardev->wake, &count, sizeof(count));
	if (fds[3].revents)
		write_some(chardev);
	/* The write may have found the client gone. */
	if (fds[1].revents && chardev->input_fd == fds[1].fd)
		read_some(chardev, room);
	if (fds[2].revents)
		accept_client(chardev);
}

static void *chardev_thread(void *opaque)
{
	struct chardev *chardev = opaque;

	while (!atomic_load(&chardev->quit))
		poll_once(chardev);

	while (chardev->output_fd >= 0) {
		struct pollfd out = {.fd = chardev->output_fd, .events = POLLOUT};

		if (poll(&out, 1, 0) != 1 || !(out.revents & POLLOUT) || !write_some(chardev))
			break;
	}
	return NULL;
}

static int listen_unix(struct chardev *chardev, const char *path, struct error **err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	cleanup_close int fd = -1, probe = -1;
	struct stat status;

	if (strlen(path) == 0 || strlen(path) >= sizeof(address.sun_path))
		return error_set(
			err, -ENAMETOOLONG,
			"serial: the socket path \"%s\" has %zu bytes, 1 to %zu are possible", path,
			strlen(path), sizeof(address.sun_path) - 1);
	strcpy(address.sun_path, path);
	/* connect() says ECONNREFUSED for any file that is no socket, too. */
	if (lstat(path, &status) == 0 && !S_ISSOCK(status.st_mode))
		return error_set(err, -EADDRINUSE,
				 "serial: %s exists and is no socket; remove it or choose another "
				 "path",
				 path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || probe < 0)
		return error_set_errno(err, -errno, "serial: cannot make a socket");
	if (connect(probe, (struct sockaddr *)&address, sizeof(address)) != 0 &&
	    errno == ECONNREFUSED)
		unlink(path); /* left behind by a process that has ended */
	/* On Linux the file that bind() makes takes its mode from the socket. */
	if (fchmod(fd, 0600) != 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
	    listen(fd, 4) != 0)
		return error_set_errno(err, -errno, "serial: cannot listen on %s", path);
	strcpy(chardev->socket_path, path);
	chardev->listen_fd = steal_fd(&fd);
	return 0;
}

/* A terminal that is held (Ctrl-S) blocks a write although poll() saw room. By a description of its
 * own it can be written without waiting, and the shell's stays as it is. */
static void open_stdout(struct chardev *chardev)
{
	int fd = isatty(STDOUT_FILENO)
			 ? open("/proc/self/fd/1", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)
			 : -1;

	chardev->owned = fd >= 0;
	chardev->output_fd = fd >= 0 ? fd : STDOUT_FILENO;
}

static int open_file(struct chardev *chardev, const char *path, struct error **err)
{
	int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
	struct stat status;

	/* fifo(7): for reading and writing it opens at once, reader or not. */
	if (stat(path, &status) == 0 && S_ISFIFO(status.st_mode))
		flags = O_RDWR | O_CLOEXEC | O_NONBLOCK;
	chardev->output_fd = open(path, flags, 0644);
	if (chardev->output_fd < 0)
		return error_set_errno(err, -errno, "serial: cannot open %s", path);
	chardev->owned = true;
	return 0;
}

static int open_where(struct chardev *chardev, const char *where, struct error **err)
{
	if (strncmp(where, "unix:", 5) == 0)
		return listen_unix(chardev, where + 5, err);
	if (strcmp(where, "stdio") == 0) {
		chardev->input_fd = STDIN_FILENO;
		open_stdout(chardev);
		return 0;
	}
	return open_file(chardev, where, err);
}

int chardev_open(struct chardev **chardev, const char *where, const struct chardev_sink *sink,
		 struct error **err)
{
	struct chardev *new;
	int code;

	*chardev = NULL;
	if (strcmp(where, "none") == 0)
		return 0;
	new = calloc(1, sizeof(*new));
	if (!new)
		return error_set(err, -ENOMEM, "no memory for the serial line");
	new->sink = *sink;
	new->listen_fd = new->input_fd = new->output_fd = -1;
	pthread_mutex_init(&new->lock, NULL);
	new->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	code = new->wake < 0 ? error_set_errno(err, -errno, "serial: no event descriptor")
			     : open_where(new, where, err);
	if (code == 0) {
		code = -pthread_create(&new->thread, NULL, chardev_thread, new);
		if (code < 0)
			error_set_errno(err, code, "serial: cannot start a thread");
		else
			pthread_setname_np(new->thread, "serial");
	}
	if (code < 0) {
		atomic_store(&new->quit, true);
		if (new->listen_fd >= 0) {
			close(new->listen_fd);
			unlink(new->socket_path);
		}
		if (new->owned)
			close(new->output_fd);
		if (new->wake >= 0)
			close(new->wake);
		free(new);
		return code;
	}
	*chardev = new;
	return 0;
}

void chardev_close(struct chardev *chardev)
{
	if (!chardev)
		return;
	atomic_store(&chardev->quit, true);
	wake(chardev);
	pthread_join(chardev->thread, NULL);
	if (chardev->listen_fd >= 0) {
		close(chardev->listen_fd);
		unlink(chardev->socket_path);
	}
	if (chardev->output_fd >= 0)
		drop_output(chardev);
	close(chardev->wake);
	pthread_mutex_destroy(&chardev->lock);
	free(chardev);
}
