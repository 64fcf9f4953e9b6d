/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "cmd/tool.h"
#include "control/address.h"

#define CHILD_MAX_ARGUMENTS 40
#define START_US            15000000
#define STOP_US             5000000

extern char **environ;

char *child_last_words(const struct child *child, char *buffer, size_t length)
{
	cleanup_close int fd = open(child->log_path, O_RDONLY | O_CLOEXEC);
	off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
	off_t start = end > (off_t)length - 1 ? end - (off_t)length + 1 : 0;
	ssize_t n = end > 0 ? pread(fd, buffer, length - 1, start) : 0;

	buffer[n > 0 ? n : 0] = '\0';
	while (n > 0 && buffer[n - 1] == '\n')
		buffer[--n] = '\0';
	return buffer;
}

/* True when it has ended (or never was). */
static bool child_ended(struct child *child)
{
	if (child->pid && waitpid(child->pid, NULL, WNOHANG) != 0)
		child->pid = 0;
	return !child->pid;
}

static int child_spawn(struct child *child, char *const argv[], struct error **err)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	sigset_t all, none;
	int result;

	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_addopen(&files, 2, child->log_path, O_WRONLY | O_CREAT | O_APPEND,
					 0600);
	posix_spawnattr_init(&attributes);
	sigfillset(&all);
	sigemptyset(&none);
	/* A group of its own: Ctrl-C is for the command that started it, which ends it in order. */
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK |
						      POSIX_SPAWN_SETPGROUP);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setpgroup(&attributes, 0);
	result = posix_spawn(&child->pid, "/proc/self/exe", &files, &attributes, argv, environ);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&files);
	if (result) {
		child->pid = 0;
		return error_set_errno(err, -result, "cannot start 'godwit run'");
	}
	return 0;
}

static int child_connect(struct child *child, struct error **err)
{
	uint64_t deadline = clock_us() + START_US;

	for (;;) {
		cleanup_error struct error *error = NULL;
		char words[400];
		int result = control_client_connect(&child->client, child->control_path, 2000000,
						    &error);

		if (!result)
			return 0;
		control_client_close(child->client);
		child->client = NULL;
		if (child_ended(child))
			return error_set(err, -ECHILD, "'godwit run' ended at its start: %s",
					 child_last_words(child, words, sizeof(words)));
		if (tool_interrupts)
			return error_set(err, -EINTR, "interrupted");
		if (clock_us() > deadline)
			return error_set(err, result, "'godwit run' does not answer: %s",
					 error_text(error));
		usleep(5000);
	}
}

int child_start(struct child *child, const char *folder, const char *name, char *const argv[],
		struct error **err)
{
	char control[128], serial[128];
	char *words[CHILD_MAX_ARGUMENTS + 8] = {(char *)"godwit"};
	unsigned int count = 1;
	int n, result;

	memset(child, 0, sizeof(*child));
	child->serial = -1;
	n = snprintf(child->control_path, sizeof(child->control_path), "%s/%s.qmp", folder, name);
	snprintf(child->serial_path, sizeof(child->serial_path), "%s/%s.ser", folder, name);
	snprintf(child->log_path, sizeof(child->log_path), "%s/%s.log", folder, name);
	if ((size_t)n >= sizeof(child->control_path))
		return error_set(err, -ENAMETOOLONG,
				 "the path of the temporary folder '%s' is too long for a socket",
				 folder);
	snprintf(control, sizeof(control), "unix:%s", child->control_path);
	snprintf(serial, sizeof(serial), "unix:%s", child->serial_path);
	while (*argv && count < CHILD_MAX_ARGUMENTS)
		words[count++] = *argv++;
	words[count++] = (char *)"--control";
	words[count++] = control;
	words[count++] = (char *)"--serial";
	words[count++] = serial;
	result = child_spawn(child, words, err);
	if (!result)
		result = child_connect(child, err);
	if (result)
		child_stop(child);
	return result;
}

/* A machine that waits for its guest has no serial line yet: it is connected to when it is used. */
static int child_connect_serial(struct child *child, uint64_t deadline, struct error **err)
{
	while (child->serial < 0) {
		cleanup_error struct error *error = NULL;
		int result = address_connect(child->serial_path, 1000000, &child->serial, &error);

		if (!result)
			return 0;
		if (tool_interrupts)
			return error_set(err, -EINTR, "interrupted");
		if (child_ended(child))
			return error_set(err, -ECHILD, "'godwit run' has ended");
		if (clock_us() > deadline)
			return error_set(err, result, "no serial line: %s", error_text(error));
		usleep(1000);
	}
	return 0;
}

/* A whole line that was read, without its end; NULL when there is none yet. */
static const char *child_take_line(struct child *child, char *line, size_t length)
{
	char *end = memchr(child->line, '\n', child->line_length);
	size_t size;

	if (!end && child->line_length < sizeof(child->line))
		return NULL;
	/* What is longer than any line of the guest is cut up. */
	size = end ? (size_t)(end - child->line) : child->line_length;
	snprintf(line, length, "%.*s", (int)size, child->line);
	line[strcspn(line, "\r")] = '\0';
	size += end != NULL;
	child->line_length -= size;
	memmove(child->line, child->line + size, child->line_length);
	return line;
}

int child_wait_line(struct child *child, const char *prefix, char *line, size_t length,
		    uint64_t timeout_us, struct error **err)
{
	uint64_t deadline = clock_us() + timeout_us;
	int result = child_connect_serial(child, deadline, err);

	if (result)
		return result;
	for (;;) {
		struct pollfd poll_fd = {.fd = child->serial, .events = POLLIN};
		uint64_t now;
		ssize_t n;

		while (child_take_line(child, line, length))
			if (!strncmp(line, prefix, strlen(prefix)))
				return 0;
		now = clock_us();
		if (tool_interrupts)
			return error_set(err, -EINTR, "interrupted");
		if (now >= deadline)
			return error_set(err, -ETIMEDOUT, "the guest did not say '%s' in %llu ms",
					 prefix, (unsigned long long)(timeout_us / 1000));
		if (poll(&poll_fd, 1, (int)((deadline - now + 999) / 1000)) <= 0)
			continue;
		n = recv(child->serial, child->line + child->line_length,
			 sizeof(child->line) - child->line_length, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return error_set(err, -ECONNRESET, "the guest's serial line closed");
		if (n > 0)
			child->line_length += (size_t)n;
	}
}

int child_type(struct child *child, const char *text, struct error **err)
{
	uint64_t deadline = clock_us() + 2000000;
	int result = child_connect_serial(child, deadline, err);

	if (!result)
		result = io_write_full(child->serial, text, strlen(text), deadline, err);
	return result ? error_prefix(err, "cannot write to the guest's serial line") : 0;
}

uint64_t line_value(const char *line, const char *name, bool *found)
{
	size_t length = strlen(name);

	for (const char *word = strchr(line, ' '); word; word = strchr(word + 1, ' ')) {
		if (!strncmp(word + 1, name, length) && word[1 + length] == '=') {
			*found = true;
			return strtoull(word + 2 + length, NULL, 0);
		}
	}
	*found = false;
	return 0;
}

void child_leave(struct child *child)
{
	control_client_close(child->client);
	child->client = NULL;
	if (child->serial >= 0)
		close(child->serial);
	child->serial = -1;
}

void child_stop(struct child *child)
{
	uint64_t deadline = clock_us() + STOP_US;

	if (child->client && !child_ended(child))
		control_client_execute(child->client, "quit", NULL, NULL, 1000000, NULL);
	else if (child->pid)
		kill(child->pid, SIGTERM);
	while (!child_ended(child) && clock_us() < deadline)
		usleep(1000);
	if (child->pid) {
		kill(child->pid, SIGKILL);
		waitpid(child->pid, NULL, 0);
		child->pid = 0;
	}
	child_leave(child);
	if (*child->log_path)
		unlink(child->log_path);
	/* Those of a process that was killed. */
	if (*child->control_path)
		unlink(child->control_path);
	if (*child->serial_path)
		unlink(child->serial_path);
}
