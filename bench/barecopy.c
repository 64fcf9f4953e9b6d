/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bare copy: what the kernel needs to bring N bytes from one process's memory into another's
 * over a unix socket, with nothing of a migration around it. `make bench` holds a move's rate
 * against it. Both ends are in this program (fork), the sender's memory is filled beforehand.
 *
 *   total  fresh memory is mapped and populated by threads, then the bytes are received into it
 *   warm   the bytes are received once more into the same memory
 *
 * --clock prints pairs of the TSC and the system's clocks instead, for the bench to relate what a
 * guest says (TSC) to what a monitor says (time of day). Prints one JSON object a line.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define MIB           (1024ull * 1024)
#define SOCKET_BUFFER (1 * MIB)  /* as Godwit's channels have it */
#define STEP          (64 * MIB) /* populated in one call */
#define HUGE_PAGE     (2 * MIB)
#define MAX_THREADS   64
#define CLOCK_TRIES   64

enum backing { BACKING_PRIVATE, BACKING_SHARED, BACKING_HUGETLB };

static const char *const backing_names[] = {"private", "shared", "hugetlb"};

struct options {
	uint64_t bytes, chunk;
	unsigned int threads;
	enum backing backing;
};

static void fail(const char *what) __attribute__((noreturn));

static void fail(const char *what)
{
	fprintf(stderr, "barecopy: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t clock_now(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t tsc_read(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t value;

	__asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(value));
	return value;
#else
#error "no cycle counter is known for this architecture"
#endif
}

/* The pair that took the shortest time to read, so that no interruption lies between the two. */
static void print_clock(void)
{
	uint64_t best = UINT64_MAX, tsc = 0, realtime = 0, monotonic = 0;

	for (unsigned int i = 0; i < CLOCK_TRIES; i++) {
		uint64_t before = tsc_read(), wall = clock_now(CLOCK_REALTIME);
		uint64_t mono = clock_now(CLOCK_MONOTONIC), after = tsc_read();

		if (after - before >= best)
			continue;
		best = after - before;
		tsc = before + best / 2;
		realtime = wall;
		monotonic = mono;
	}
	printf("{\"tsc\": %" PRIu64 ", \"realtime_ns\": %" PRIu64 ", \"monotonic_ns\": %" PRIu64
	       ", \"width\": %" PRIu64 "}\n",
	       tsc, realtime, monotonic, best);
}

static uint8_t *memory_map(const struct options *options)
{
	uint64_t size = (options->bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	int fd = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	uint8_t *memory;

	if (options->backing != BACKING_PRIVATE) {
		fd = memfd_create("barecopy",
				  MFD_CLOEXEC |
					  (options->backing == BACKING_HUGETLB ? MFD_HUGETLB : 0));
		if (fd < 0 || ftruncate(fd, (off_t)size) < 0)
			fail("cannot create the memory's file");
		flags = MAP_SHARED;
	} else {
		/* One huge page more, so that the start can be aligned to one. */
		size += HUGE_PAGE;
	}
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);
	if (memory == MAP_FAILED)
		fail("cannot map the memory");
	if (fd >= 0)
		close(fd);
	if (options->backing == BACKING_PRIVATE)
		memory = (uint8_t *)(((uintptr_t)memory + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
	if (options->backing != BACKING_HUGETLB)
		madvise(memory, (options->bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1), MADV_HUGEPAGE);
	return memory;
}

struct populate {
	uint8_t *memory;
	uint64_t bytes;
	_Atomic(uint64_t) next;
};

static void *populate_run(void *opaque)
{
	struct populate *job = opaque;
	uint64_t at;

	while ((at = atomic_fetch_add(&job->next, STEP)) < job->bytes) {
		uint64_t size = job->bytes - at < STEP ? job->bytes - at : STEP;

		if (madvise(job->memory + at, size, MADV_POPULATE_WRITE) < 0)
			fail("cannot populate the memory");
	}
	return NULL;
}

static void populate(uint8_t *memory, const struct options *options)
{
	struct populate job = {.memory = memory, .bytes = options->bytes};
	pthread_t threads[MAX_THREADS];

	for (unsigned int i = 0; i < options->threads; i++) {
		errno = pthread_create(&threads[i], NULL, populate_run, &job);
		if (errno)
			fail("cannot start a thread");
	}
	for (unsigned int i = 0; i < options->threads; i++)
		pthread_join(threads[i], NULL);
}

static uint64_t pattern(uint64_t index)
{
	return (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

static void fill(uint8_t *memory, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes / 8; i++)
		((uint64_t *)memory)[i] = pattern(i);
}

static void check(const uint8_t *memory, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes / 8; i++) {
		if (((const uint64_t *)memory)[i] == pattern(i))
			continue;
		fprintf(stderr, "barecopy: what arrived is not what was sent (byte %" PRIu64 ")\n",
			i * 8);
		exit(1);
	}
}

static void socket_send(int fd, const uint8_t *memory, const struct options *options)
{
	for (uint64_t at = 0; at < options->bytes;) {
		uint64_t left = options->bytes - at;
		struct iovec part = {(void *)(uintptr_t)(memory + at),
				     left < options->chunk ? left : options->chunk};
		struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
		ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);

		if (sent < 0 && errno != EINTR)
			fail("cannot send");
		at += sent > 0 ? (uint64_t)sent : 0;
	}
}

static void socket_receive(int fd, uint8_t *memory, const struct options *options)
{
	for (uint64_t at = 0; at < options->bytes;) {
		uint64_t left = options->bytes - at;
		struct iovec part = {memory + at, left < options->chunk ? left : options->chunk};
		struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
		ssize_t received = recvmsg(fd, &message, 0);

		if (received == 0) {
			fputs("barecopy: the sender ended early\n", stderr);
			exit(1);
		}
		if (received < 0 && errno != EINTR)
			fail("cannot receive");
		at += received > 0 ? (uint64_t)received : 0;
	}
}

/* Sends the whole once for each byte it is sent, until the other end is closed. */
static void sender(int fd, const struct options *options) __attribute__((noreturn));

static void sender(int fd, const struct options *options)
{
	uint8_t *memory = memory_map(options);
	int size = SOCKET_BUFFER;
	char byte = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size)) < 0)
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	populate(memory, options);
	fill(memory, options->bytes);
	if (write(fd, &byte, 1) != 1)
		fail("cannot tell that the sender is ready");
	while (read(fd, &byte, 1) == 1)
		socket_send(fd, memory, options);
	exit(0);
}

static void ask(int fd)
{
	if (write(fd, "", 1) != 1)
		fail("cannot ask the sender");
}

static void measure(const struct options *options)
{
	uint64_t began, populated, received, warm;
	int pair[2], status;
	uint8_t *memory;
	char byte;
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		fail("cannot create a socket pair");
	child = fork();
	if (child < 0)
		fail("cannot fork");
	if (child == 0) {
		close(pair[0]);
		sender(pair[1], options);
	}
	close(pair[1]);
	if (read(pair[0], &byte, 1) != 1)
		fail("the sender did not come up");

	began = clock_now(CLOCK_MONOTONIC);
	memory = memory_map(options);
	populate(memory, options);
	populated = clock_now(CLOCK_MONOTONIC);
	ask(pair[0]);
	socket_receive(pair[0], memory, options);
	received = clock_now(CLOCK_MONOTONIC);
	ask(pair[0]);
	socket_receive(pair[0], memory, options);
	warm = clock_now(CLOCK_MONOTONIC);

	check(memory, options->bytes);
	close(pair[0]);
	if (waitpid(child, &status, 0) < 0 || status != 0)
		fail("the sender failed");
	printf("{\"bytes\": %" PRIu64 ", \"chunk\": %" PRIu64 ", \"threads\": %u, "
	       "\"backing\": \"%s\", \"populate_s\": %.6f, \"copy_s\": %.6f, \"total_s\": %.6f, "
	       "\"total_rate\": %.0f, \"warm_s\": %.6f, \"warm_rate\": %.0f}\n",
	       options->bytes, options->chunk, options->threads, backing_names[options->backing],
	       (double)(populated - began) / 1e9, (double)(received - populated) / 1e9,
	       (double)(received - began) / 1e9,
	       (double)options->bytes * 1e9 / (double)(received - began),
	       (double)(warm - received) / 1e9,
	       (double)options->bytes * 1e9 / (double)(warm - received));
}

static bool parse_size(const char *text, uint64_t *value)
{
	static const char units[] = "KMGT";
	const char *unit;
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 10);
	if (errno || end == text || *text == '-')
		return false;
	if (!*end)
		return true;
	unit = strchr(units, *end);
	return unit && !end[1] &&
	       !__builtin_mul_overflow(*value, 1ull << (10 * (unit - units + 1)), value);
}

static bool parse_backing(const char *text, enum backing *backing)
{
	for (unsigned int i = 0; i < sizeof(backing_names) / sizeof(backing_names[0]); i++) {
		if (strcmp(text, backing_names[i]) == 0) {
			*backing = (enum backing)i;
			return true;
		}
	}
	return false;
}

static const char help[] =
	"Usage: barecopy [--bytes SIZE] [--chunk SIZE] [--threads N] [--backing KIND]\n"
	"       barecopy --clock\n"
	"\n"
	"  --bytes SIZE    how much is copied (800M)\n"
	"  --chunk SIZE    bytes a sendmsg or recvmsg call (1M)\n"
	"  --threads N     threads that populate (2)\n"
	"  --backing KIND  private (anonymous, huge pages), shared (memfd) or hugetlb\n"
	"  --clock         prints a pair of TSC and clocks for each line of standard input\n";

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"bytes", required_argument, NULL, 'b'},
		{"chunk", required_argument, NULL, 'c'},
		{"threads", required_argument, NULL, 't'},
		{"backing", required_argument, NULL, 'k'},
		{"clock", no_argument, NULL, 'C'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	struct options chosen = {.bytes = 800 * MIB, .chunk = MIB, .threads = 2};
	uint64_t threads = chosen.threads;
	bool clock = false, good = true;
	char line[16];
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'b':
			good &= parse_size(optarg, &chosen.bytes) && chosen.bytes > 0;
			break;
		case 'c':
			good &= parse_size(optarg, &chosen.chunk) && chosen.chunk > 0;
			break;
		case 't':
			good &= parse_size(optarg, &threads) && threads > 0 &&
				threads <= MAX_THREADS;
			break;
		case 'k':
			good &= parse_backing(optarg, &chosen.backing);
			break;
		case 'C':
			clock = true;
			break;
		case 'h':
			fputs(help, stdout);
			return 0;
		default:
			good = false;
		}
	}
	if (!good || optind < argc) {
		fputs(help, stderr);
		return 2;
	}
	chosen.threads = (unsigned int)threads;
	/* Whole pages, as a guest's memory has. */
	chosen.bytes = (chosen.bytes + 4095) & ~4095ull;
	if (!clock) {
		measure(&chosen);
		return 0;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof(line), stdin))
		print_clock();
	return 0;
}
