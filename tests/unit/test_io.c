/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/io.h"

#define BYTES (3u << 20)

enum channel { CHANNEL_SOCKET, CHANNEL_PIPE };

struct transfer {
	int fd;
	uint8_t *data;
	int result;
	_Atomic(bool) done;
};

/* ends[0] is read, ends[1] written. */
static void open_channel(enum channel channel, bool blocking, int ends[2])
{
	int flags = blocking ? 0 : SOCK_NONBLOCK;

	if (channel == CHANNEL_SOCKET)
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | flags, 0, ends), 0);
	else
		assert_int_equal(pipe2(ends, blocking ? 0 : O_NONBLOCK), 0);
}

static void *write_all(void *data)
{
	struct transfer *transfer = data;

	transfer->result =
		io_write_full(transfer->fd, transfer->data, BYTES, clock_us() + 20000000, NULL);
	transfer->done = true;
	return NULL;
}

static void on_signal(int number)
{
}

/* A writer that is interrupted by signals all the time, and a reader. */
static void move_through(enum channel channel, bool blocking)
{
	uint8_t *from = malloc(BYTES), *to = calloc(1, BYTES);
	struct transfer transfer = {.data = from};
	struct error *err = NULL;
	pthread_t writer;
	int ends[2];

	for (size_t i = 0; i < BYTES; i++)
		from[i] = (uint8_t)(i * 7 + i / 4096);
	open_channel(channel, blocking, ends);
	transfer.fd = ends[1];
	assert_int_equal(pthread_create(&writer, NULL, write_all, &transfer), 0);
	for (size_t done = 0; done < BYTES; done += BYTES / 64) {
		pthread_kill(writer, SIGUSR1);
		assert_ok(io_read_full(ends[0], to + done, BYTES / 64, clock_us() + 20000000, &err),
			  err);
	}
	pthread_join(writer, NULL);
	assert_int_equal(transfer.result, 0);
	assert_memory_equal(from, to, BYTES);
	close(ends[0]);
	close(ends[1]);
	free(from);
	free(to);
}

static void test_moves_all(void **state)
{
	struct sigaction action = {.sa_handler = on_signal};

	sigaction(SIGUSR1, &action, NULL);
	for (int blocking = 0; blocking < 2; blocking++) {
		move_through(CHANNEL_SOCKET, blocking);
		move_through(CHANNEL_PIPE, blocking);
	}
}

/* A peer that neither sends nor takes: both directions end at the deadline, blocking or not. */
static void test_deadline(void **state)
{
	uint8_t *data = calloc(1, BYTES);

	for (int i = 0; i < 4; i++) {
		struct error *err = NULL;
		uint64_t start;
		int ends[2];

		open_channel(i / 2 ? CHANNEL_PIPE : CHANNEL_SOCKET, i % 2, ends);
		start = clock_us();
		assert_refused(io_read_full(ends[0], data, 10, start + 30000, &err), err,
			       -ETIMEDOUT, "only 0 of 10 bytes");
		assert_true(clock_us() - start >= 30000);
		start = clock_us();
		assert_refused(io_write_full(ends[1], data, BYTES, start + 30000, &err), err,
			       -ETIMEDOUT, "of 3145728 bytes in time");
		assert_in_range(clock_us() - start, 30000, 5000000);
		close(ends[0]);
		close(ends[1]);
	}
	free(data);
}

static void test_what_is_there_is_taken(void **state)
{
	struct error *err = NULL;
	char text[6] = "";
	int ends[2];

	open_channel(CHANNEL_SOCKET, true, ends);
	assert_ok(io_write_full(ends[1], "hello", 5, 0, &err), err);
	assert_ok(io_read_full(ends[0], text, 5, 0, &err), err);
	assert_string_equal(text, "hello");
	assert_ok(io_read_full(ends[0], text, 0, 0, &err), err);
	close(ends[0]);
	close(ends[1]);
}

static void test_peer_gone(void **state)
{
	struct error *err = NULL;
	char text[8];
	int ends[2];

	for (int i = 0; i < 2; i++) {
		open_channel(i ? CHANNEL_PIPE : CHANNEL_SOCKET, true, ends);
		assert_ok(io_write_full(ends[1], "abc", 3, IO_NO_DEADLINE, &err), err);
		close(ends[1]);
		assert_refused(io_read_full(ends[0], text, 8, IO_NO_DEADLINE, &err), err,
			       -ECONNRESET, "after 3 of 8 bytes");
		assert_refused(io_read_full(ends[0], text, 8, IO_NO_DEADLINE, &err), err, -ENODATA,
			       "closed");
		close(ends[0]);
	}
	signal(SIGPIPE, SIG_IGN);
	open_channel(CHANNEL_PIPE, true, ends);
	close(ends[0]);
	assert_refused(io_write_full(ends[1], "abc", 3, IO_NO_DEADLINE, &err), err, -EPIPE,
		       "Broken pipe");
	close(ends[1]);
	signal(SIGPIPE, SIG_DFL); /* sockets must not raise it */
	open_channel(CHANNEL_SOCKET, true, ends);
	close(ends[0]);
	assert_refused(io_write_full(ends[1], "abc", 3, IO_NO_DEADLINE, &err), err, -EPIPE,
		       "Broken pipe");
	close(ends[1]);
}

static void test_file_and_bad_descriptor(void **state)
{
	int fd = memfd_create("test", MFD_CLOEXEC);
	struct error *err = NULL;
	uint8_t *from = malloc(BYTES), *to = malloc(BYTES);

	memset(from, 0x3c, BYTES);
	assert_ok(io_write_full(fd, from, BYTES, clock_us() + 10000000, &err), err);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	assert_ok(io_read_full(fd, to, BYTES, clock_us() + 10000000, &err), err);
	assert_memory_equal(from, to, BYTES);
	assert_refused(io_read_full(fd, to, 1, IO_NO_DEADLINE, &err), err, -ENODATA, "closed");
	close(fd);
	assert_refused(io_read_full(fd, to, 1, IO_NO_DEADLINE, &err), err, -EBADF,
		       "Bad file descriptor");
	assert_refused(io_write_full(fd, to, 1, IO_NO_DEADLINE, &err), err, -EBADF,
		       "Bad file descriptor");
	free(from);
	free(to);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_moves_all),
		cmocka_unit_test(test_deadline),
		cmocka_unit_test(test_what_is_there_is_taken),
		cmocka_unit_test(test_peer_gone),
		cmocka_unit_test(test_file_and_bad_descriptor),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
