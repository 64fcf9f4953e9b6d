/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The window as the source sees it, and who owns the guest afterwards (ARCHITECTURE.md, "Who owns
 * the guest"; docs/switchover.pml is its model). Until COMMIT is sent this side owns the guest and
 * any trouble ends in running on; from then on only the destination's answer, the owner record or
 * the operator decide.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "migration/source.h"

/* In doubt with a record: how often it is looked at. */
#define DOUBT_STEP_MS 10

/* The window up to PREPARE: all that the guest still is goes out. */
static int send_last(struct source *s, uint64_t deadline_us, bool running, struct error **err)
{
	struct migration *m = s->m;
	struct prepare prepare = {.epoch = s->epoch, .running = running};
	uint8_t raw[PREPARE_SIZE];
	uint64_t start = clock_us();
	int status;

	status = ram_sender_harvest(&s->ram, err);
	s->account.harvest = clock_us() - start;
	if (status < 0)
		return status;
	start = clock_us();
	status = ram_sender_send(&s->ram, true, deadline_us, err);
	s->account.memory = clock_us() - start;
	if (status < 0)
		return status;
	start = clock_us();
	buffer_clear(&s->state);
	state_encode_delta(&s->map, &s->state);
	status = wire_send(&m->wire, WIRE_STATE_DELTA, 0, s->state.data, (uint32_t)s->state.size,
			   NULL, 0, 0, deadline_us, err);
	if (status < 0)
		return status;
	memcpy(prepare.nonce, s->nonce, sizeof(prepare.nonce));
	prepare.pages = s->ram.normal_pages;
	prepare.zero_pages = s->ram.zero_pages;
	prepare_encode(&prepare, raw);
	status = wire_send(&m->wire, WIRE_PREPARE, 0, raw, sizeof(raw), NULL, 0, 0, deadline_us,
			   err);
	s->account.state = clock_us() - start;
	return status;
}

static int receive_until(struct source *s, enum wire_type type, uint64_t deadline_us,
			 uint64_t *number, struct error **err)
{
	struct wire_header header;
	int status = engine_expect_until(s->m, type, &header, deadline_us, err);

	return status < 0 ? status : token_decode(s->m, &header, s->nonce, number, err);
}

/*
 * Before COMMIT: the guest stays here. The new epoch fences a destination that may have said yes
 * already, before the guest runs on.
 */
static int run_on(struct source *s)
{
	int status = s->shared_record ? owner_advance(s->owner) : 0;

	if (status < 0) {
		/* Nobody else can have run it: COMMIT was not sent. The destination's claim needs
		 * our lock, which we keep. */
		log_warning("cannot write the owner record %s; its lock still fences",
			    s->owner->path);
	}
	s->m->ops->resume(s->m->opaque);
	return 0;
}

/* The lock is ours again at the old epoch: take the guest back. */
static int take_back(struct source *s, const char *why, struct error **err)
{
	struct error *reason = NULL;
	int status = 0;

	if (s->m->ops->locks_acquire)
		status = s->m->ops->locks_acquire(s->m->opaque, &reason);
	if (status < 0) {
		log_error("the guest stays paused: %s", error_text(reason));
		error_free(&reason);
		s->m->ops->in_doubt(s->m->opaque);
		return error_set(err, status, "%s, and the guest's disks cannot be locked again: it "
				 "stays paused; free the disks and say cont", why);
	}
	if (s->owner->fd >= 0 && owner_advance(s->owner) < 0)
		log_warning("cannot write the owner record %s; its lock still fences",
			    s->owner->path);
	s->m->ops->resume(s->m->opaque);
	return error_set(err, -EREMOTEIO, "%s; the guest runs on here", why);
}

/* Nothing more can be found out: paused until the operator speaks. */
static int ask_operator(struct source *s, const char *why, struct error **err)
{
	struct migration *m = s->m;
	uint64_t found;
	bool quit, here;

	engine_update(m, {
		info->in_doubt = true;
		info->phase = MIGRATION_PHASE_IN_DOUBT;
		snprintf(info->error, sizeof(info->error),
			 "%s; the guest may run on the destination. Make sure of one side, then say "
			 "x-migrate-resolve with owner here or there", why);
	});
	log_error("migration in doubt: %s; x-migrate-resolve decides", why);
	for (;;) {
		here = engine_wait_resolve(m, &quit);
		if (quit)
			return error_set(err, -ECANCELED, "%s; quit while in doubt", why);
		if (!here)
			break;
		/* The record, where there is one, protects even against a wrong word. */
		if (s->owner->fd < 0 || owner_lock(s->owner, &found) == 0)
			break;
		engine_update(m, snprintf(info->error, sizeof(info->error),
					  "the guest runs elsewhere: another process holds %s",
					  s->owner->path));
	}
	engine_update(m, {
		info->in_doubt = false;
		*info->error = '\0';
	});
	if (here)
		return take_back(s, why, err);
	owner_close(s->owner);
	m->ops->moved(m->opaque);
	return 0;
}

/*
 * COMMIT is out and no answer came, or (refused) one that says no: the record decides where there is
 * one.
 */
static int resolve_doubt(struct source *s, bool refused, const char *why, struct error **err)
{
	uint64_t deadline = clock_us() + s->parameters.switchover_timeout_ms * 1000, found = 0;
	struct owner_record *owner = s->owner;

	s->m->ops->in_doubt(s->m->opaque);
	if (!s->shared_record)
		return ask_operator(s, why, err);
	do {
		int status = owner_lock(owner, &found);

		if (status == 0 && found == s->epoch)
			return take_back(s, why, err);
		if (status == 0) {
			/* The destination marked, then died: the guest's state is gone with it. */
			owner_unlock(owner);
			return ask_operator(s, "the destination took the guest over and ended", err);
		}
		if (status != -EAGAIN)
			return ask_operator(s, "the owner record cannot be read", err);
		if (!refused && owner_taken_by_other(owner, s->epoch)) {
			/* It holds the lock and has marked: it runs the guest. */
			owner_close(owner);
			s->m->ops->moved(s->m->opaque);
			return 0;
		}
		poll(NULL, 0, DOUBT_STEP_MS);
	} while (clock_us() < deadline);
	return ask_operator(s, why, err);
}

static int commit(struct source *s, uint64_t start_us, struct error **err)
{
	struct migration *m = s->m;
	uint64_t timeout = s->parameters.switchover_timeout_ms * 1000, sent_us, resume_us = 0;
	uint64_t sent_bytes = m->channel.sent;
	struct error *reason = NULL;
	uint8_t token[TOKEN_SIZE];
	bool unsent;
	int status;

	/* A cancel comes too late from here on. */
	m->channel.cancel_fd = -1;
	s->decided = true;
	if (m->ops->locks_release)
		m->ops->locks_release(m->opaque);
	if (s->shared_record)
		owner_unlock(s->owner);
	sent_us = clock_us();
	token_encode(token, s->nonce, s->epoch);
	status = wire_send(&m->wire, WIRE_COMMIT, 0, token, sizeof(token), NULL, 0, 0,
			   sent_us + timeout, &reason);
	unsent = status < 0 && m->channel.sent - sent_bytes < WIRE_HEADER_SIZE + TOKEN_SIZE;
	if (status == 0)
		status = receive_until(s, WIRE_RUNNING, clock_us() + timeout, &resume_us, &reason);
	if (status == 0) {
		uint64_t now = clock_us(), late_us = resume_us >> 32;

		/* What the guest did not wait for is no part of its pause. */
		if (late_us < now - sent_us)
			now -= late_us;
		resume_us &= UINT32_MAX;
		s->account.total = now - start_us;
		s->account.resume = resume_us;
		s->account.wire += now - sent_us > resume_us ? now - sent_us - resume_us : 0;
		owner_close(s->owner);
		m->ops->moved(m->opaque);
	} else if ((status == -EREMOTEIO || unsent) && !s->shared_record) {
		/* It says that it did not take the guest, or never got the whole COMMIT; and nobody
		 * else can take it. */
		status = take_back(s, error_text(reason), err);
	} else {
		status = resolve_doubt(s, status == -EREMOTEIO, error_text(reason), err);
		s->account.total = clock_us() - start_us;
	}
	error_free(&reason);
	return status;
}

int handover_source(struct source *s, struct error **err)
{
	struct migration *m = s->m;
	uint64_t start, stopped = 0, prepared, deadline, load_us = 0;
	bool was_running;
	int status;

	engine_set_phase(m, MIGRATION_PHASE_SWITCHOVER);
	engine_set_status(m, MIGRATION_DEVICE);
	if (m->cancelled)
		return error_set(err, -ECANCELED, "cancelled");
	start = clock_us();
	deadline = start + s->parameters.switchover_timeout_ms * 1000;
	status = m->ops->stop(m->opaque, deadline, &was_running, &stopped, err);
	if (status < 0)
		return status;
	s->account.stop = clock_us() - start;
	status = send_last(s, deadline, was_running, err);
	prepared = clock_us();
	/* The guest waits for this answer. It does not wait for RUNNING: then the processor is better
	 * left to it. */
	m->channel.spin_us = ENGINE_SPIN_US;
	if (status == 0)
		status = receive_until(s, WIRE_VOTE_YES, deadline, &load_us, err);
	m->channel.spin_us = 0;
	if (status < 0) {
		run_on(s);
		return status;
	}
	s->account.load = load_us;
	s->account.wire = clock_us() - prepared > load_us ? clock_us() - prepared - load_us : 0;
	return commit(s, start, err);
}
