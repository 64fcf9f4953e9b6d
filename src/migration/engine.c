/* SPDX-License-Identifier: Apache-2.0 */
#include "migration/engine.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"

void engine_set_status(struct migration *m, enum migration_status status)
{
	bool changed = false;

	engine_update(m, {
		/* A cancel that was asked for shows until its outcome does. */
		if (info->status != MIGRATION_CANCELLING) {
			changed = info->status != status;
			info->status = status;
		}
	});
	/* A pre-check is no migration to those who watch for one. */
	if (changed && m->callbacks.status_changed && !m->check_only)
		m->callbacks.status_changed(m->callbacks_opaque, status);
}

void engine_tell_cancelling(struct migration *m)
{
	if (m->cancelled && m->callbacks.status_changed && !m->check_only)
		m->callbacks.status_changed(m->callbacks_opaque, MIGRATION_CANCELLING);
}

void engine_set_phase(struct migration *m, enum migration_phase phase)
{
	engine_update(m, info->phase = phase);
}

void engine_finish(struct migration *m, enum migration_status status)
{
	engine_update(m, {
		info->phase = MIGRATION_PHASE_DONE;
		info->status = status;
		info->in_doubt = false;
		info->total_time_us = clock_us() - info->start_us;
		m->busy = false;
	});
	if (m->callbacks.status_changed)
		m->callbacks.status_changed(m->callbacks_opaque, status);
}

void engine_fail(struct migration *m, struct error **err)
{
	bool cancelled = m->cancelled;

	if (!cancelled)
		engine_update(m,
			      snprintf(info->error, sizeof(info->error), "%s", error_text(*err)));
	error_free(err);
	engine_finish(m, cancelled ? MIGRATION_CANCELLED : MIGRATION_FAILED);
}

int engine_wait_resolve(struct migration *m, uint64_t timeout_us)
{
	struct timespec until;
	int word, status = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	timeout_us += (uint64_t)until.tv_nsec / 1000;
	until.tv_sec += (time_t)(timeout_us / 1000000);
	until.tv_nsec = (long)(timeout_us % 1000000 * 1000);
	pthread_mutex_lock(&m->lock);
	while (m->resolve_asked < 0 && m->job != JOB_QUIT && status == 0)
		status = pthread_cond_timedwait(&m->wake, &m->lock, &until);
	word = m->resolve_asked >= 0 ? m->resolve_asked
	       : m->job == JOB_QUIT  ? -ECANCELED
				     : -ETIMEDOUT;
	m->resolve_asked = -1;
	pthread_mutex_unlock(&m->lock);
	return word;
}

int engine_refused(struct migration *m, const struct wire_header *header, struct error **err)
{
	uint32_t length = header->length < WIRE_MAX_REASON ? header->length : WIRE_MAX_REASON;
	char reason[WIRE_MAX_REASON + 1];

	for (uint32_t i = 0; i < length; i++)
		reason[i] = m->body[i] >= ' ' && m->body[i] < 127 ? (char)m->body[i] : '?';
	reason[length] = '\0';
	return error_set(err, -EREMOTEIO, "%s", reason);
}

/* A peer that never pauses keeps the channel from looking at the cancel: so it is asked for here.
 */
static int receive_one(struct migration *m, struct wire_header *header, uint64_t deadline_us,
		       struct error **err)
{
	if (m->cancelled && m->channel.cancel_fd >= 0)
		return error_set(err, -ECANCELED, "cancelled");
	return wire_receive(&m->wire, header, m->body, WIRE_MAX_BODY, deadline_us, err);
}

static int check_refused(struct migration *m, const struct wire_header *header, struct error **err)
{
	if (header->type == WIRE_REFUSE || header->type == WIRE_ABORT)
		return engine_refused(m, header, err);
	return 0;
}

int engine_receive(struct migration *m, struct wire_header *header, uint64_t silence_us,
		   struct error **err)
{
	do {
		int status = receive_one(m, header, clock_us() + silence_us, err);

		if (status < 0)
			return status;
	} while (header->type == WIRE_KEEPALIVE);
	return check_refused(m, header, err);
}

int engine_receive_until(struct migration *m, struct wire_header *header, uint64_t deadline_us,
			 struct error **err)
{
	for (;;) {
		int status = receive_one(m, header, deadline_us, err);

		if (status < 0)
			return status;
		if (header->type != WIRE_KEEPALIVE)
			return check_refused(m, header, err);
		if (clock_us() >= deadline_us)
			return error_set(err, -ETIMEDOUT, "the other side did not answer in time");
	}
}

static int check_type(enum wire_type type, const struct wire_header *header, struct error **err)
{
	if (header->type != type)
		return error_set(err, -EPROTO, "migration stream damaged: %s came where %s was due",
				 wire_type_name(header->type), wire_type_name(type));
	return 0;
}

int engine_expect(struct migration *m, enum wire_type type, struct wire_header *header,
		  uint64_t silence_us, struct error **err)
{
	int status = engine_receive(m, header, silence_us, err);

	return status < 0 ? status : check_type(type, header, err);
}

int engine_expect_until(struct migration *m, enum wire_type type, struct wire_header *header,
			uint64_t deadline_us, struct error **err)
{
	int status = engine_receive_until(m, header, deadline_us, err);

	return status < 0 ? status : check_type(type, header, err);
}

int engine_send(struct migration *m, enum wire_type type, uint16_t flags, const void *body,
		uint32_t length, struct error **err)
{
	return wire_send(&m->wire, type, flags, body, length, NULL, 0, 0,
			 clock_us() + m->timeouts.answer, err);
}

void engine_send_reason(struct migration *m, enum wire_type type, const char *reason)
{
	size_t length = strlen(reason);

	m->channel.cancel_fd = -1;
	/* After half a message the end of the stream is the only word that is understood. */
	if (m->channel.fd < 0 || m->wire.torn)
		return;
	wire_send(&m->wire, type, 0, reason,
		  (uint32_t)(length < WIRE_MAX_REASON ? length : WIRE_MAX_REASON), NULL, 0, 0,
		  clock_us() + m->timeouts.farewell, NULL);
}
