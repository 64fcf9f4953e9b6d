/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The source: before the window (describe, scan, rounds), in the order of ARCHITECTURE.md's
 * switchover. What happens from the stop on is in handover.c.
 */
#include "migration/source.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"

/* While the destination still populates: how long to wait for it between two rounds. */
#define READY_STEP_US 20000u
/* Rounds after QUIET, while they still shrink what is left by a fifth. */
#define LAST_ROUNDS 4
/* Clean-up of a move that succeeded waits so long. */
#define CLEANUP_DELAY_MS 250
/* Messages of the destination that are taken between two rounds. */
#define ANSWERS_AT_ONCE 16
/* A round after QUIET is not answered, so it may only be one that the channel has taken before the
 * vCPUs stop; a longer one would make the guest wait for it. */
#define LAST_ROUND_US 20000u
/* So few pages are not worth another round. */
#define LAST_PAGES 16u

static int send_hello(struct source *s, struct error **err)
{
	struct hello hello = {
		.version = WIRE_VERSION, .version_min = WIRE_VERSION, .features = WIRE_FEATURES};
	struct buffer out = {0};
	struct wire_header header;
	struct reader in;
	uint64_t sent_us;
	int status;

	if (getrandom(s->nonce, sizeof(s->nonce), 0) != sizeof(s->nonce))
		return error_set_errno(err, -errno, "cannot get random bytes");
	memcpy(hello.nonce, s->nonce, sizeof(s->nonce));
	hello_encode(&hello, &out);
	status = engine_send(s->m, WIRE_HELLO, s->m->check_only ? WIRE_FLAG_CHECK : 0, out.data,
			     (uint32_t)out.size, err);
	buffer_free(&out);
	sent_us = clock_us();
	if (status == 0)
		status = engine_expect(s->m, WIRE_HELLO_OK, &header, s->m->timeouts.answer, err);
	if (status < 0)
		return status;
	s->round_trip_us = clock_us() - sent_us;
	reader_init(&in, s->m->body, header.length);
	status = hello_decode(&hello, &in, err);
	if (status < 0)
		return status;
	if (memcmp(hello.nonce, s->nonce, sizeof(s->nonce)) != 0)
		return error_set(err, -EPROTO, "HELLO-OK belongs to another migration");
	if (hello.version != WIRE_VERSION)
		return error_set(err, -EPROTONOSUPPORT,
				 "the destination speaks stream version %u, this side %u",
				 hello.version, WIRE_VERSION);
	if (hello.required & ~WIRE_FEATURES)
		return error_set(
			err, -EPROTONOSUPPORT,
			"the destination requires stream features 0x%x that this side does "
			"not have",
			hello.required & ~WIRE_FEATURES);
	s->features = hello.features & WIRE_FEATURES;
	return 0;
}

static int send_machine(struct source *s, struct error **err)
{
	struct machine_offer offer = {.machine_version = MACHINE_VERSION,
				      .switchover_timeout_ms =
					      (uint32_t)s->parameters.switchover_timeout_ms};
	struct buffer out = {0};
	int status = s->m->ops->describe(s->m->opaque, &offer.description, err);

	if (status < 0)
		return status;
	if (s->owner->fd >= 0) {
		memcpy(offer.owner_path, s->owner->path, sizeof(offer.owner_path));
		memcpy(offer.owner, s->owner->self, sizeof(offer.owner));
		offer.owner_durable = s->owner->durable;
		s->epoch = offer.epoch = s->owner->epoch;
	}
	machine_offer_encode(&offer, &out);
	description_free(&offer.description);
	status = out.error ? error_set(err, out.error, "out of memory")
			   : engine_send(s->m, WIRE_MACHINE, 0, out.data, (uint32_t)out.size, err);
	buffer_free(&out);
	return status;
}

static int await_machine(struct source *s, struct error **err)
{
	struct wire_header header;
	int status = engine_expect(s->m, WIRE_MACHINE_OK, &header, s->m->timeouts.stall, err);

	if (status == 0)
		s->shared_record = header.length > 0 && s->m->body[0] && s->owner->fd >= 0;
	return status;
}

static int send_schema(struct source *s, struct error **err)
{
	unsigned int count;
	const struct state_object *objects = s->m->ops->state(s->m->opaque, &count);
	struct buffer out = {0};
	struct wire_header header;
	int status = state_map_build(&s->map, objects, count, err);

	if (status < 0)
		return status;
	state_map_encode(&s->map, &out);
	status = out.error ? error_set(err, out.error, "out of memory")
			   : engine_send(s->m, WIRE_SCHEMA, 0, out.data, (uint32_t)out.size, err);
	buffer_free(&out);
	if (status == 0)
		status = engine_expect(s->m, WIRE_SCHEMA_OK, &header, s->m->timeouts.answer, err);
	return status;
}

static void publish_progress(void *opaque)
{
	struct source *s = opaque;

	engine_update(s->m, {
		info->ram_transferred = s->m->channel.sent;
		info->ram_remaining = s->ram.pending_pages * RAM_PAGE_SIZE;
		info->normal_pages = s->ram.normal_pages;
		info->zero_pages = s->ram.zero_pages;
		info->untouched_pages = s->ram.untouched_pages;
		info->bandwidth_bps = s->convergence.rate;
		info->expected_downtime_us = s->convergence.expected_us;
	});
}

/*
 * The dirty log goes on, memory is looked through, and every vCPU and device saves itself: all that
 * this side can do while the destination builds its machine.
 */
static int prepare(struct source *s, struct error **err)
{
	uint64_t start;
	int status;

	engine_set_phase(s->m, MIGRATION_PHASE_SCAN);
	status = ram_sender_init(&s->ram, s->m->ops, s->m->opaque, &s->m->wire, err);
	if (status < 0)
		return status;
	s->ram.progress = publish_progress;
	s->ram.progress_opaque = s;
	s->ram.cancelled = &s->m->cancelled;
	status = s->m->ops->log_start(s->m->opaque, err);
	if (status < 0)
		return status;
	s->logging = true;
	status = ram_sender_scan(&s->ram, err);
	if (status < 0)
		return status;
	start = clock_us();
	status = s->m->ops->save_early(s->m->opaque, err);
	s->convergence.fixed_us = clock_us() - start + 2 * s->round_trip_us;
	return status;
}

static int send_early(struct source *s, struct error **err)
{
	int status = buffer_reserve(&s->state, s->map.values_size);

	if (status < 0)
		return error_set(err, status, "out of memory");
	state_encode_early(&s->map, &s->state);
	status =
		engine_send(s->m, WIRE_STATE_EARLY, 0, s->state.data, (uint32_t)s->state.size, err);
	buffer_clear(&s->state);
	return status;
}

static int take_ready(struct source *s, const struct wire_header *header, struct error **err)
{
	uint64_t load_us;
	int status = token_decode(s->m, header, s->nonce, &load_us, err);

	if (status < 0)
		return status;
	if (load_us < 10000000)
		s->convergence.fixed_us += load_us;
	s->ready = true;
	return 0;
}

/* One message of the destination, which has come or is coming. */
static int take_answer(struct source *s, struct error **err)
{
	struct wire_header header;
	int status = wire_receive(&s->m->wire, &header, s->m->body, WIRE_MAX_BODY,
				  clock_us() + s->m->timeouts.answer, err);

	if (status < 0)
		return status;
	s->heard_us = clock_us();
	if (header.type == WIRE_KEEPALIVE)
		return 0;
	if (header.type == WIRE_REFUSE)
		return engine_refused(s->m, &header, err);
	if (header.type == WIRE_READY && !s->ready)
		return take_ready(s, &header, err);
	if (header.type == WIRE_ROUND_DONE && s->rounds_done < s->rounds && header.length == 8 &&
	    bytes_get_u64(s->m->body) == s->rounds) {
		s->rounds_done = s->rounds;
		return 0;
	}
	return error_set(err, -EPROTO, "migration stream damaged: %s came early",
			 wire_type_name(header.type));
}

/* Takes READY when it has come; a refusal or an end is an error. A destination that never stops
 * talking does not keep the source from its work. */
static int look_at_answers(struct source *s, struct error **err)
{
	for (int i = 0; i < ANSWERS_AT_ONCE && channel_readable(&s->m->channel); i++) {
		int status = take_answer(s, err);

		if (status < 0)
			return status;
	}
	if (!s->ready && clock_us() - s->heard_us > s->m->timeouts.stall)
		return error_set(err, -ETIMEDOUT, "the destination has fallen silent");
	return 0;
}

/*
 * Until all of the round has arrived. What the socket takes at once says nothing about the channel
 * behind it, and what is queued there would be a part of the guest's pause.
 */
static int await_round(struct source *s, struct error **err)
{
	struct migration *m = s->m;
	uint64_t sent_us = clock_us(), round_trip_us;

	/* The destination may well have been silent while this side was sending. */
	s->heard_us = sent_us;
	while (s->rounds_done < s->rounds) {
		int status = m->cancelled ? -ECANCELED
					  : channel_wait_readable(&m->channel,
								  s->heard_us + m->timeouts.stall);

		if (status == -ECANCELED)
			return error_set(err, status, "cancelled");
		if (status < 0)
			return error_set(err, status, "the destination has fallen silent");
		status = take_answer(s, err);
		if (status < 0)
			return status;
	}
	/* HELLO-OK may have been late for once. */
	round_trip_us = clock_us() - sent_us;
	if (round_trip_us < s->round_trip_us) {
		s->convergence.fixed_us -= 2 * (s->round_trip_us - round_trip_us);
		s->round_trip_us = round_trip_us;
	}
	return 0;
}

/* Capability auto-converge: a guest that writes faster than the channel carries is slowed down. */
static void throttle(struct source *s, uint64_t sent, uint64_t limit_us)
{
	const struct migration_parameters *p = &s->parameters;
	const struct throttle_policy policy = {
		.initial = (unsigned int)p->cpu_throttle_initial,
		.increment = (unsigned int)p->cpu_throttle_increment,
		.most = (unsigned int)p->max_cpu_throttle,
		.threshold = (unsigned int)p->throttle_trigger_threshold,
		.tailslow = p->cpu_throttle_tailslow,
	};
	unsigned int before = s->convergence.throttle, percent;

	if (!s->m->capabilities.auto_converge || !s->m->ops->throttle)
		return;
	percent = convergence_throttle(&s->convergence, &policy, sent,
				       s->ram.pending_pages * RAM_PAGE_SIZE, limit_us, clock_us());
	if (percent == before)
		return;
	s->m->ops->throttle(s->m->opaque, percent);
	engine_update(s->m, info->throttle_percent = percent);
}

/* One round: all that is pending, then what was written meanwhile becomes pending. */
static int send_round(struct source *s, struct error **err)
{
	struct channel *channel = &s->m->channel;
	uint64_t start = clock_us(), throttled = channel->throttled_us, bytes = channel->sent, us;
	uint8_t end[8];
	int status = ram_sender_send(&s->ram, false, 0, err);

	if (status < 0)
		return status;
	s->rounds++;
	bytes_put_u64(end, s->rounds);
	status = wire_send(&s->m->wire, WIRE_ROUND_END, 0, end, sizeof(end), NULL, 0, 0, 0, err);
	if (status == 0)
		status = await_round(s, err);
	if (status < 0)
		return status;
	us = clock_us() - start - (channel->throttled_us - throttled);
	convergence_measure(&s->convergence, channel->sent - bytes, us);
	status = ram_sender_harvest(&s->ram, err);
	us = clock_us() - start;
	engine_update(s->m, {
		info->dirty_sync_count = s->rounds;
		info->dirty_pages_rate = us ? s->ram.pending_pages * 1000000 / us : 0;
	});
	return status;
}

static int wait_continue(struct source *s, struct error **err)
{
	struct migration *m = s->m;
	bool asked = false;
	int status = 0;

	engine_set_status(m, MIGRATION_PRE_SWITCHOVER);
	while (!asked && status == 0) {
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec++;
		pthread_mutex_lock(&m->lock);
		while (!m->continue_asked && !m->cancelled)
			if (pthread_cond_timedwait(&m->wake, &m->lock, &until) == ETIMEDOUT)
				break;
		asked = m->continue_asked;
		pthread_mutex_unlock(&m->lock);
		if (m->cancelled)
			return error_set(err, -ECANCELED, "cancelled");
		status = look_at_answers(s, err);
		if (status == 0)
			status = engine_send(m, WIRE_KEEPALIVE, 0, NULL, 0, err);
	}
	s->continued = true;
	engine_set_status(m, MIGRATION_ACTIVE);
	return status;
}

/* Paces a loop that has nothing to wait for: a round that cannot help yet is not hurried. */
static int pause_between(struct source *s, struct error **err)
{
	int status = channel_wait_readable(&s->m->channel, clock_us() + READY_STEP_US);

	return status == -ECANCELED ? error_set(err, status, "cancelled") : 0;
}

static int run_rounds(struct source *s, struct error **err)
{
	struct migration *m = s->m;

	engine_set_phase(m, MIGRATION_PHASE_ROUNDS);
	s->heard_us = clock_us();
	for (;;) {
		enum convergence_verdict verdict;
		uint64_t limit_us, started = clock_us(), sent = m->channel.sent;
		int status;

		engine_get_parameters(m, &s->parameters);
		m->channel.max_bandwidth = s->parameters.max_bandwidth;
		limit_us = s->parameters.downtime_limit_ms * 1000;
		status = send_round(s, err);
		if (status == 0)
			status = look_at_answers(s, err);
		if (status < 0)
			return status;
		verdict = convergence_decide(&s->convergence, s->ram.pending_pages * RAM_PAGE_SIZE,
					     limit_us);
		throttle(s, m->channel.sent - sent, limit_us);
		engine_update(m,
			      info->converging = convergence_converging(&s->convergence, limit_us));
		publish_progress(s);
		if (m->callbacks.pass)
			m->callbacks.pass(m->callbacks_opaque, s->rounds);
		if (verdict == CONVERGENCE_STOP && s->ready) {
			if (!m->capabilities.pause_before_switchover || s->continued)
				return 0;
			status = wait_continue(s, err);
		} else if (verdict == CONVERGENCE_STOP ||
			   (s->convergence.expected_us > limit_us &&
			    clock_us() - started < READY_STEP_US / 4)) {
			/* Only READY is missing, or a short round did not help: no hurry. */
			status = pause_between(s, err);
		}
		if (status < 0)
			return status;
		if (m->cancelled)
			return error_set(err, -ECANCELED, "cancelled");
	}
}

/* So little is pending that the channel takes it at once. */
static bool last_round_is_short(const struct source *s)
{
	uint64_t bytes = s->ram.pending_pages * RAM_PAGE_SIZE;

	return !s->convergence.rate ||
	       (double)bytes * 1e6 < (double)s->convergence.rate * LAST_ROUND_US;
}

/* INTENT and QUIET, then short rounds while the destination listens and nothing else. */
static int approach(struct source *s, struct error **err)
{
	struct migration *m = s->m;
	uint8_t token[TOKEN_SIZE];
	struct wire_header header;
	uint64_t number, before;
	int status;

	engine_set_phase(m, MIGRATION_PHASE_READY);
	m->channel.max_bandwidth = 0;
	token_encode(token, s->nonce, 0);
	status = engine_send(m, WIRE_INTENT, 0, token, sizeof(token), err);
	if (status == 0)
		status = engine_expect(m, WIRE_QUIET, &header,
				       s->parameters.switchover_timeout_ms * 1000, err);
	if (status == 0)
		status = token_decode(m, &header, s->nonce, &number, err);
	s->intent_bytes = m->channel.sent;
	for (unsigned int i = 0; status == 0 && i < LAST_ROUNDS && last_round_is_short(s); i++) {
		before = s->ram.pending_pages;
		status = ram_sender_send(&s->ram, false, 0, err);
		if (status == 0)
			status = ram_sender_harvest(&s->ram, err);
		if (s->ram.pending_pages <= LAST_PAGES ||
		    s->ram.pending_pages > before - before / 5)
			break;
	}
	publish_progress(s);
	return status;
}

static int run(struct source *s, struct error **err)
{
	struct migration *m = s->m;
	struct migration_request request = {.uri = m->uri,
					    .fd = m->uri_fd,
					    .insecure = m->insecure,
					    .allow_exec = m->allow_exec};
	int status;

	m->uri_fd = -1;
	status = channel_connect(&m->channel, &request, m->cancel_fd,
				 clock_us() + m->timeouts.connect, err);
	if (status < 0) {
		if (request.fd >= 0)
			close(request.fd);
		return status;
	}
	m->channel.stall_us = m->timeouts.stall;
	m->wire = (struct wire){.channel = &m->channel};
	engine_set_phase(m, MIGRATION_PHASE_CHECK);
	status = send_hello(s, err);
	if (status == 0)
		status = send_machine(s, err);
	if (status == 0 && !m->check_only)
		status = prepare(s, err);
	if (status == 0)
		status = await_machine(s, err);
	if (status < 0 || m->check_only)
		return status;
	status = send_schema(s, err);
	if (status == 0)
		status = ram_sender_ranges(&s->ram, err);
	if (status == 0)
		status = send_early(s, err);
	if (status < 0)
		return status;
	engine_update(m, info->setup_time_us = clock_us() - info->start_us);
	engine_set_status(m, MIGRATION_ACTIVE);
	status = run_rounds(s, err);
	if (status == 0)
		status = approach(s, err);
	if (status == 0)
		status = handover_source(s, err);
	return status;
}

/* A peer that refused says why and closes; a send then fails first, and the reason is still there.
 */
static void prefer_reason(struct source *s, struct error **err)
{
	uint64_t deadline = clock_us() + s->m->timeouts.farewell;
	struct error *reason = NULL;
	struct wire_header header;

	if (s->m->channel.fd < 0 || s->m->cancelled || !*err || (*err)->code != -EPIPE)
		return;
	s->m->channel.cancel_fd = -1;
	while (engine_receive_until(s->m, &header, deadline, &reason) == 0 && clock_us() < deadline)
		;
	if (reason && reason->code == -EREMOTEIO) {
		error_free(err);
		*err = reason;
	} else {
		error_free(&reason);
	}
}

static void complete(struct source *s)
{
	engine_update(s->m, {
		info->ram_transferred = s->m->channel.sent;
		info->ram_remaining = 0;
		info->normal_pages = s->ram.normal_pages;
		info->zero_pages = s->ram.zero_pages;
		info->downtime_us = s->account.total;
		info->account = s->account;
		info->precopy_bytes = s->intent_bytes;
		info->downtime_bytes = s->m->channel.sent - s->intent_bytes;
	});
	engine_finish(s->m, MIGRATION_COMPLETED);
}

void source_run(struct migration *m)
{
	struct source s = {.m = m, .owner = m->ops->owner(m->opaque)};
	struct error *err = NULL;
	int status;

	engine_get_parameters(m, &s.parameters);
	engine_update(m, {
		struct ram *ram = m->ops->ram(m->opaque);

		info->ram_total = ram ? ram->size : 0;
	});
	status = run(&s, &err);
	if (status < 0)
		engine_tell_cancelling(m);
	if (status < 0 && !s.decided) {
		prefer_reason(&s, &err);
		engine_send_reason(m, WIRE_ABORT, error_text(err));
	}
	/* A failed move is over, and may be tried again, once its log is off; for one that
	 * succeeded that is clean-up, and nobody waits for it. */
	if (status < 0 && s.logging)
		m->ops->log_stop(m->opaque);
	if (status < 0)
		engine_fail(m, &err);
	else
		complete(&s);
	if (status == 0 && s.logging) {
		/* On a small host it would take the processor from the guest that has just begun.
		 */
		poll(NULL, 0, CLEANUP_DELAY_MS);
		m->ops->log_stop(m->opaque);
	}
	channel_close(&m->channel);
	ram_sender_free(&s.ram);
	state_map_free(&s.map);
	buffer_free(&s.state);
}
