/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The destination up to PREPARE: it treats every byte as hostile, builds its machine from the
 * description, and takes memory and early state. The hand-over itself is in handover_destination.c.
 */
#include "migration/destination.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"

/* While the guest's memory is populated: how often its end is looked for. */
#define READY_STEP_US 2000u
/* Messages between two publications of progress. */
#define PROGRESS_MESSAGES 32

static int out_of_place(const struct wire_header *header, struct error **err)
{
	return error_set(err, -EPROTO, "migration stream damaged: %s is out of place",
			 wire_type_name(header->type));
}

/*
 * Sends an answer. A source that has hung up said why before, and that is still to be read: so a
 * closed connection is no error here, but where the next message is received.
 */
static int answer(struct destination *d, enum wire_type type, const void *body, uint32_t length,
		  struct error **err)
{
	struct error *reason = NULL;
	int status = engine_send(d->m, type, 0, body, length, &reason);

	if (status == -EPIPE) {
		error_free(&reason);
		return 0;
	}
	if (reason)
		*err = reason;
	return status;
}

static int take_hello(struct destination *d, bool *check_only, struct error **err)
{
	struct hello hello, ours = {.version = WIRE_VERSION,
				    .version_min = WIRE_VERSION,
				    .features = WIRE_FEATURES};
	struct buffer out = {0};
	struct wire_header header;
	struct reader in;
	int status = engine_expect(d->m, WIRE_HELLO, &header, d->m->timeouts.answer, err);

	if (status < 0)
		return status;
	*check_only = header.flags & WIRE_FLAG_CHECK;
	reader_init(&in, d->m->body, header.length);
	status = hello_decode(&hello, &in, err);
	if (status < 0)
		return status;
	if (hello.version_min > WIRE_VERSION || hello.version < WIRE_VERSION)
		return error_set(err, -EPROTONOSUPPORT,
				 "the source speaks stream versions %u to %u, this side %u",
				 hello.version_min, hello.version, WIRE_VERSION);
	if (hello.required & ~WIRE_FEATURES)
		return error_set(err, -EPROTONOSUPPORT,
				 "the source requires stream features 0x%x that this side does not "
				 "have",
				 hello.required & ~WIRE_FEATURES);
	memcpy(d->nonce, hello.nonce, sizeof(d->nonce));
	memcpy(ours.nonce, hello.nonce, sizeof(ours.nonce));
	hello_encode(&ours, &out);
	status = out.error ? error_set(err, out.error, "out of memory")
			   : answer(d, WIRE_HELLO_OK, out.data, (uint32_t)out.size, err);
	buffer_free(&out);
	return status;
}

/* The same file is the same host, or storage that both share: then the record decides. One that a
 * third process holds says that the source is not who owns the guest: a stream that is played again,
 * or a source that was cut off and does not know it. */
static int open_record(struct destination *d, const struct machine_offer *offer, struct error **err)
{
	struct error *why = NULL;
	int status;

	if (!*offer->owner_path)
		return 0;
	status = owner_open(d->owner, offer->owner_path, offer->owner_durable, offer->owner,
			    offer->epoch, &why);
	d->shared_record = status == 0;
	if (status == -EBUSY) {
		*err = why;
		return status;
	}
	if (status < 0)
		log_info("no owner record in common with the source: %s", error_text(why));
	error_free(&why);
	return 0;
}

static int take_machine(struct destination *d, bool check_only, struct error **err)
{
	struct migration *m = d->m;
	struct machine_offer offer;
	struct wire_header header;
	struct reader in;
	uint8_t shared;
	int status = engine_expect(m, WIRE_MACHINE, &header, m->timeouts.answer, err);

	if (status < 0)
		return status;
	reader_init(&in, m->body, header.length);
	status = machine_offer_decode(&offer, &in, err);
	if (status < 0)
		return status;
	d->asked = !check_only;
	status = m->ops->build(m->opaque, &offer.description, check_only, err);
	if (status == 0 && !check_only) {
		d->epoch = offer.epoch;
		d->machine_version = offer.machine_version;
		d->timeout_us = offer.switchover_timeout_ms * UINT64_C(1000);
		if (d->timeout_us < 100000 || d->timeout_us > 600000000)
			d->timeout_us = 5000000;
		status = open_record(d, &offer, err);
	}
	if (status == 0 && !check_only)
		status = ram_receiver_init(&d->ram, m->ops->ram(m->opaque), &m->wire, err);
	description_free(&offer.description);
	if (status < 0)
		return status;
	shared = d->shared_record;
	return answer(d, WIRE_MACHINE_OK, &shared, 1, err);
}

static int take_schema(struct destination *d, struct reader *in, struct error **err)
{
	unsigned int count;
	const struct state_object *objects = d->m->ops->state(d->m->opaque, &count);
	int status = state_map_decode(&d->map, in, objects, count, d->machine_version, err);

	return status < 0 ? status : answer(d, WIRE_SCHEMA_OK, NULL, 0, err);
}

/* A rehearsal: what can fail or is slow the first time does so now. */
static int take_early(struct destination *d, struct reader *in, struct error **err)
{
	uint64_t start;
	int status = state_decode(&d->map, in, true, err);

	if (status < 0)
		return status;
	start = clock_us();
	status = d->m->ops->load(d->m->opaque, err);
	d->load_us = clock_us() - start;
	d->has_early = true;
	return status < 0 ? error_prefix(err, "early state") : 0;
}

static int take_intent(struct destination *d, const struct wire_header *header, struct error **err)
{
	uint8_t token[TOKEN_SIZE];
	uint64_t number;
	int status = token_decode(d->m, header, d->nonce, &number, err);

	if (status == 0)
		status = ram_receiver_quiet(&d->ram, err);
	if (status < 0)
		return status;
	d->quiet = true;
	token_encode(token, d->nonce, 0);
	return answer(d, WIRE_QUIET, token, sizeof(token), err);
}

static int take_message(struct destination *d, const struct wire_header *header, struct error **err)
{
	struct reader in;

	reader_init(&in, d->m->body, header->length);
	switch (header->type) {
	case WIRE_RAM:
		return ram_receiver_pages(&d->ram, header, &in, 0, err);
	case WIRE_ZERO:
		return ram_receiver_zero(&d->ram, &in, err);
	case WIRE_ROUND_END:
		if (header->length != 8 || d->quiet)
			return out_of_place(header, err);
		return answer(d, WIRE_ROUND_DONE, d->m->body, header->length, err);
	case WIRE_KEEPALIVE:
		return 0;
	case WIRE_SCHEMA:
		return d->map.bindings ? out_of_place(header, err) : take_schema(d, &in, err);
	case WIRE_RANGES:
		if (d->has_ranges || d->quiet)
			return out_of_place(header, err);
		d->has_ranges = true;
		return ram_receiver_ranges(&d->ram, &in, err);
	case WIRE_STATE_EARLY:
		if (d->has_early || !d->map.bindings)
			return out_of_place(header, err);
		return take_early(d, &in, err);
	case WIRE_INTENT:
		return d->quiet || !d->ready ? out_of_place(header, err)
					     : take_intent(d, header, err);
	case WIRE_STATE_DELTA:
		if (!d->quiet || d->has_delta)
			return out_of_place(header, err);
		d->has_delta = true;
		return state_decode(&d->map, &in, false, err);
	case WIRE_ABORT:
		engine_refused(d->m, header, err);
		return error_prefix(err, "the source gave up");
	default:
		return out_of_place(header, err);
	}
}

/* Now and then, that work goes on. A source that has not read the last ones yet needs no more of
 * them: it is still sending. */
static int tell_alive(struct destination *d, struct error **err)
{
	struct pollfd room = {.fd = d->m->channel.fd, .events = POLLOUT};
	uint64_t now = clock_us();

	if (now - d->keepalive_us < d->m->timeouts.keepalive)
		return 0;
	d->keepalive_us = now;
	return poll(&room, 1, 0) > 0 ? answer(d, WIRE_KEEPALIVE, NULL, 0, err) : 0;
}

/* Says READY when all is built, loaded and populated. Up to INTENT it may take long until a round
 * has come through a slow channel. */
static int tell_ready(struct destination *d, struct error **err)
{
	uint8_t token[TOKEN_SIZE];
	int status;

	if (d->quiet)
		return 0;
	if (!d->ready && d->has_early && d->has_ranges && ram_receiver_populated(&d->ram)) {
		status = ram_receiver_quiet(&d->ram, err);
		if (status < 0)
			return status;
		d->ready = true;
		token_encode(token, d->nonce, d->load_us);
		return answer(d, WIRE_READY, token, sizeof(token), err);
	}
	return tell_alive(d, err);
}

static void publish_progress(struct destination *d)
{
	engine_update(d->m, {
		info->ram_transferred = d->m->channel.received;
		info->normal_pages = d->ram.pages;
		info->zero_pages = d->ram.zero_pages;
	});
}

/* Messages up to PREPARE, whose header is handed back. */
static int receive_stream(struct destination *d, struct wire_header *header, struct error **err)
{
	struct migration *m = d->m;
	int status;

	d->heard_us = clock_us();
	for (;;) {
		status = tell_ready(d, err);
		if (status == 0 && m->cancelled)
			status = error_set(err, -ECANCELED, "cancelled");
		if (status < 0)
			return status;
		status = channel_wait_readable(&m->channel,
					       clock_us() + (d->ready ? 200000 : READY_STEP_US));
		if (status == -ETIMEDOUT && clock_us() - d->heard_us < m->timeouts.stall)
			continue;
		if (status < 0)
			return error_set(err, status, "%s",
					 status == -ECANCELED ? "cancelled"
							      : "the source has fallen silent");
		status = wire_receive(&m->wire, header, m->body, WIRE_MAX_BODY, 0, err);
		if (status < 0)
			return status;
		d->heard_us = clock_us();
		if (header->type == WIRE_PREPARE)
			return d->has_delta ? 0 : out_of_place(header, err);
		status = take_message(d, header, err);
		if (status < 0)
			return status;
		if (!d->quiet && ++d->messages % PROGRESS_MESSAGES == 0)
			publish_progress(d);
	}
}

/* One connection up to the built machine. *again: it came to nothing, and harmed nothing. */
static int begin(struct destination *d, bool *again, struct error **err)
{
	struct migration *m = d->m;
	bool check_only = false;
	int status = listener_accept(&m->listener, &m->channel, m->cancel_fd, err);

	*again = false;
	if (status < 0)
		return status;
	m->channel.stall_us = m->timeouts.stall;
	m->wire = (struct wire){.channel = &m->channel};
	engine_set_phase(m, MIGRATION_PHASE_CHECK);
	status = take_hello(d, &check_only, err);
	if (status == 0)
		status = take_machine(d, check_only, err);
	/* A pre-check, no Godwit, or one that does not fit: the real source may still come. */
	*again = status != -ECANCELED && !d->asked && m->listener.fd >= 0;
	if (status == 0 && check_only && !*again)
		status = error_set(err, -ENOTCONN,
				   "it was a pre-check only, and the one connection has ended");
	return status;
}

static int run(struct destination *d, struct error **err)
{
	struct migration *m = d->m;
	struct wire_header header;
	bool again;
	int status;

	for (;;) {
		status = begin(d, &again, err);
		if (!again)
			break;
		if (status < 0) {
			log_warning("incoming connection dropped: %s", error_text(*err));
			engine_send_reason(m, WIRE_REFUSE, error_text(*err));
			error_free(err);
		}
		channel_close(&m->channel);
		engine_set_phase(m, MIGRATION_PHASE_CONNECT);
	}
	if (status < 0)
		return status;
	engine_update(m, info->ram_total = m->ops->ram(m->opaque)->size);
	engine_set_status(m, MIGRATION_ACTIVE);
	engine_set_phase(m, MIGRATION_PHASE_ROUNDS);
	status = receive_stream(d, &header, err);
	if (status == -EPIPE)
		error_prefix(err, "the source gave up or is lost");
	return status < 0 ? status : handover_destination(d, &header, err);
}

void destination_run(struct migration *m)
{
	struct destination d = {.m = m, .owner = m->ops->owner(m->opaque)};
	struct error *err = NULL;
	int status = run(&d, &err);

	if (status < 0) {
		engine_tell_cancelling(m);
		engine_send_reason(m, WIRE_REFUSE, error_text(err));
		owner_close(d.owner);
		listener_close(&m->listener);
		engine_fail(m, &err);
	} else {
		publish_progress(&d);
		m->ops->arrived(m->opaque);
		listener_close(&m->listener);
		engine_finish(m, MIGRATION_COMPLETED);
	}
	channel_close(&m->channel);
	ram_receiver_free(&d.ram);
	state_map_free(&d.map);
}
