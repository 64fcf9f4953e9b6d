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
#include <sys/un.h>
#include <unistd.h>
#include "base/cleanup.h"

/* A line is written in one go: the thread waits so long for its end. */
#define GATHER_MS 5
/* Never more than a pipe takes at once when poll() says it has room. */
#define WRITE_MAX 4096

struct chardev {
	struct chardev_sink sink;
	pthread_t thread;
	int wake;       /* eventfd */
	int listen_fd;  /* unix: else -1 */
	int input_fd;   /* -1: nothing to read from */
	int output_fd;  /* -1: nobody to write to */
	bool is_socket; /* input_fd and output_fd are one client */
	bool owned;     /* output_fd is to be closed */
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
	if (done < 0 && errno != EINTR && errno != EAGAIN) {
		/* A client that went away, a closed pipe, a full disk: nobody reads any more. */
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

	if (strlen(path) == 0 || strlen(path) >= sizeof(address.sun_path))
		return error_set(
			err, -ENAMETOOLONG,
			"serial: the socket path \"%s\" has %zu bytes, 1 to %zu are possible", path,
			strlen(path), sizeof(address.sun_path) - 1);
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || probe < 0)
		return error_set_errno(err, -errno, "serial: cannot make a socket");
	if (connect(probe, (struct sockaddr *)&address, sizeof(address)) != 0 &&
	    errno == ECONNREFUSED)
		unlink(path); /* left behind by a process that has ended */
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 || listen(fd, 4) != 0)
		return error_set_errno(err, -errno, "serial: cannot listen on %s", path);
	strcpy(chardev->socket_path, path);
	chardev->listen_fd = steal_fd(&fd);
	return 0;
}

static int open_where(struct chardev *chardev, const char *where, struct error **err)
{
	if (strncmp(where, "unix:", 5) == 0)
		return listen_unix(chardev, where + 5, err);
	if (strcmp(where, "stdio") == 0) {
		chardev->input_fd = STDIN_FILENO;
		chardev->output_fd = STDOUT_FILENO;
		return 0;
	}
	chardev->output_fd = open(where, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (chardev->output_fd < 0)
		return error_set_errno(err, -errno, "serial: cannot open %s", where);
	chardev->owned = true;
	return 0;
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
