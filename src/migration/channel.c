/* SPDX-License-Identifier: Apache-2.0 */
#include "migration/channel.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include "base/clock.h"

/* How long one sleep may last before the deadline and the stall limit are looked at again. */
#define POLL_STEP_MS 200

static int wait_for(struct channel *channel, short events, uint64_t deadline_us, uint64_t since_us)
{
	struct pollfd fds[2] = {
		{.fd = channel->fd, .events = events},
		{.fd = channel->cancel_fd, .events = POLLIN},
	};
	uint64_t now = clock_us();
	uint64_t limit = deadline_us;
	int timeout = POLL_STEP_MS;

	if (!limit && channel->stall_us)
		limit = since_us + channel->stall_us;
	if (limit) {
		if (now >= limit)
			return -ETIMEDOUT;
		if (limit - now < POLL_STEP_MS * 1000)
			timeout = (int)((limit - now + 999) / 1000);
	}
	if (poll(fds, 2, timeout) < 0 && errno != EINTR)
		return -errno;
	if (channel->cancel_fd >= 0 && fds[1].revents)
		return -ECANCELED;
	return 0;
}

static int explain(int status, const char *what, struct error **err)
{
	switch (status) {
	case -ECANCELED:
		return error_set(err, status, "cancelled");
	case -ETIMEDOUT:
		return error_set(err, status,
				 "the other side did not %s in time (silent or unreachable)", what);
	case -EPIPE:
	case -ECONNRESET:
		return error_set(err, -EPIPE, "the other side closed the connection");
	default:
		return error_set_errno(err, status, "connection lost");
	}
}

/* Keeps to max_bandwidth by sleeping until the budget for what was sent has built up. */
static int throttle(struct channel *channel, uint64_t bytes)
{
	uint64_t now, cost;

	if (!channel->max_bandwidth || !bytes)
		return 0;
	now = clock_us();
	cost = bytes * 1000000 / channel->max_bandwidth;
	/* An idle time earns at most 10 ms of budget, so that a burst stays short. */
	if (channel->bandwidth_credit_us + 10000 < now)
		channel->bandwidth_credit_us = now - 10000;
	channel->bandwidth_credit_us += cost;
	while (channel->bandwidth_credit_us > now) {
		struct pollfd fd = {.fd = channel->cancel_fd, .events = POLLIN};
		uint64_t ms = (channel->bandwidth_credit_us - now) / 1000;

		if (!ms)
			break;
		if (poll(&fd, 1, ms > POLL_STEP_MS ? POLL_STEP_MS : (int)ms) > 0)
			return -ECANCELED;
		channel->throttled_us += clock_us() - now;
		now = clock_us();
	}
	return 0;
}

/* Skips what was moved; returns the bytes still to go in *iov. */
static void advance(struct iovec **iov, unsigned int *count, size_t moved)
{
	while (*count && moved >= (*iov)->iov_len) {
		moved -= (*iov)->iov_len;
		(*iov)++;
		(*count)--;
	}
	if (*count && moved) {
		(*iov)->iov_base = (char *)(*iov)->iov_base + moved;
		(*iov)->iov_len -= moved;
	}
}

/* One sendmsg. Under a bandwidth limit it takes a hundredth of a second's worth at most: the other
 * side then sees a steady flow, not a silence that looks like a stall. */
static ssize_t send_some(struct channel *channel, struct iovec *iov, unsigned int count)
{
	struct iovec part = *iov;
	struct msghdr message = {.msg_iov = iov, .msg_iovlen = count};
	size_t limit = channel->max_bandwidth / 100, total = 0;

	if (channel->max_bandwidth) {
		if (limit < 4096)
			limit = 4096;
		for (count = 0; count < message.msg_iovlen && total < limit; count++)
			total += iov[count].iov_len;
		message.msg_iovlen = count > 1 && total > limit ? count - 1 : count;
		if (part.iov_len > limit) {
			part.iov_len = limit;
			message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1};
		}
	}
	return sendmsg(channel->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

int channel_send(struct channel *channel, struct iovec *iov, unsigned int count,
		 uint64_t deadline_us, struct error **err)
{
	uint64_t since = clock_us();

	advance(&iov, &count, 0);
	while (count) {
		ssize_t n = send_some(channel, iov, count);
		int status = n < 0 ? -errno : 0;

		if (n > 0) {
			channel->sent += (uint64_t)n;
			advance(&iov, &count, (size_t)n);
			since = clock_us();
			status = throttle(channel, (uint64_t)n);
		} else if (status == -EAGAIN || status == -EINTR) {
			status = wait_for(channel, POLLOUT, deadline_us, since);
		}
		if (status < 0)
			return explain(status, "take what was sent", err);
	}
	return 0;
}

bool channel_readable(struct channel *channel)
{
	char byte;
	ssize_t n = recv(channel->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	return n >= 0 || (errno != EAGAIN && errno != EINTR);
}

int channel_wait_readable(struct channel *channel, uint64_t deadline_us)
{
	uint64_t since = clock_us();

	while (!channel_readable(channel)) {
		int status;

		if (clock_us() - since < channel->spin_us) {
			sched_yield();
			continue;
		}
		status = wait_for(channel, POLLIN, deadline_us, since);
		if (status < 0)
			return status;
	}
	return 0;
}

int channel_receive(struct channel *channel, struct iovec *iov, unsigned int count,
		    uint64_t deadline_us, struct error **err)
{
	uint64_t since = clock_us();

	advance(&iov, &count, 0);
	while (count) {
		struct msghdr message = {.msg_iov = iov, .msg_iovlen = count};
		ssize_t n = recvmsg(channel->fd, &message, MSG_DONTWAIT);
		int status = n < 0 ? -errno : 0;

		if (n > 0) {
			channel->received += (uint64_t)n;
			advance(&iov, &count, (size_t)n);
			since = clock_us();
		} else if (n == 0) {
			status = -EPIPE;
		} else if (status == -EAGAIN || status == -EINTR) {
			/* The other side may be waiting for this very processor. */
			status = clock_us() - since < channel->spin_us
					 ? sched_yield()
					 : wait_for(channel, POLLIN, deadline_us, since);
		}
		if (status < 0)
			return explain(status, "answer", err);
	}
	return 0;
}
