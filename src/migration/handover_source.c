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
/* The same, and the channel, while the operator is waited for. */
#define DOUBT_LOOK_US 100000u

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

/* Until the destination has gone, which it does when it reads ABORT. */
static int wait_gone(struct source *s)
{
	uint64_t deadline = clock_us() + s->parameters.switchover_timeout_ms * 1000;
	struct wire_header header;
	int status;

	s->m->channel.cancel_fd = -1;
	do {
		status = engine_receive_until(s->m, &header, deadline, NULL);
	} while ((status == 0 || status == -EREMOTEIO) && clock_us() < deadline);
	if (status != -EPIPE)
		return -ETIMEDOUT;
	/* If it was the wire that ended, the destination tries our lock for so long. */
	poll(NULL, 0, (int)(s->m->timeouts.takeover / 1000) + 1);
	return 0;
}

/*
 * Before this side runs the guest (again), no destination may be left that could still claim the
 * epoch it voted for: the mark in the record, under the lock, sees to that. Where the mark cannot
 * be written, the lock protects only as long as this process lives, so the destination must have
 * gone. Negative: neither is certain.
 */
static int fence(struct source *s)
{
	if (s->owner->fd < 0 || owner_advance(s->owner) == 0)
		return 0;
	log_warning("cannot write the owner record %s", s->owner->path);
	if (!s->shared_record)
		return 0;
	engine_send_reason(s->m, WIRE_ABORT, "the source keeps the guest");
	return wait_gone(s);
}

/* The guest is this side's. `sure`: it is fenced already, or the operator says so. */
static int take_back(struct source *s, bool sure, const char *why, struct error **err);

/* Asked again and again while in doubt. */
enum doubt { DOUBT_STAYS, DOUBT_HERE, DOUBT_THERE };

/*
 * The record that both sides have. DOUBT_HERE: it is locked here, at the old epoch or already
 * marked again. *why: the reason why it cannot tell, if there is a better one.
 */
static enum doubt ask_record(struct source *s, const char **why)
{
	struct owner_record *owner = s->owner;
	uint64_t found = 0;
	int status;

	/* Ours all along, only the mark could not be written. */
	if (owner->locked)
		return owner_advance(owner) == 0 ? DOUBT_HERE : DOUBT_STAYS;
	status = owner_lock(owner, &found);
	if (status == 0 && found == s->epoch)
		return DOUBT_HERE;
	if (status == 0) {
		/* The destination marked, then died: the guest's state is gone with it. */
		owner_unlock(owner);
		*why = "the destination took the guest over and ended";
	} else if (status != -EAGAIN) {
		*why = "the owner record cannot be read";
	} else if (owner_taken_by_other(owner, s->epoch)) {
		/* It holds the lock and has marked: it has the guest. */
		return DOUBT_THERE;
	}
	return DOUBT_STAYS;
}

/* A late word of the destination. *deaf: there will be none. */
static enum doubt listen_late(struct source *s, bool *deaf)
{
	struct migration *m = s->m;
	struct wire_header header;
	uint64_t number;
	int status;

	if (*deaf || !channel_readable(&m->channel))
		return DOUBT_STAYS;
	status = engine_receive_until(m, &header, clock_us() + m->timeouts.farewell, NULL);
	/* With a record it is the record that says what REFUSE allows. */
	if (status == -EREMOTEIO)
		return s->shared_record ? DOUBT_STAYS : DOUBT_HERE;
	if (status == 0 && header.type == WIRE_RUNNING &&
	    token_decode(m, &header, s->nonce, &number, NULL) == 0)
		return DOUBT_THERE;
	*deaf = true;
	return DOUBT_STAYS;
}

/* What the operator says, or what is seen meanwhile. Negative: the program ends. */
static int wait_certain(struct source *s, bool *sure)
{
	/* Before COMMIT the destination has nothing to say about this. */
	bool deaf = !s->decided;
	const char *why;

	for (;;) {
		int word = engine_wait_resolve(s->m, DOUBT_LOOK_US);
		enum doubt doubt;
		uint64_t found;

		if (word == -ECANCELED)
			return word;
		if (word == 0)
			return DOUBT_THERE;
		/* The record, where there is one, protects even against a wrong word. */
		*sure = word == 1;
		if (word == 1 &&
		    (s->owner->fd < 0 || s->owner->locked || owner_lock(s->owner, &found) == 0))
			return DOUBT_HERE;
		if (word == 1)
			engine_update(s->m, snprintf(info->error, sizeof(info->error),
						     "the guest runs elsewhere: another process "
						     "holds %s",
						     s->owner->path));
		doubt = listen_late(s, &deaf);
		if (doubt == DOUBT_STAYS && s->shared_record) {
			*sure = s->owner->locked;
			doubt = ask_record(s, &why);
		}
		if (doubt != DOUBT_STAYS)
			return (int)doubt;
	}
}

/* Nothing more can be found out now: paused until the operator speaks, or it shows after all. */
static int ask_operator(struct source *s, const char *why, struct error **err)
{
	struct migration *m = s->m;
	bool sure = false;
	int doubt;

	engine_update(m, {
		info->in_doubt = true;
		info->phase = MIGRATION_PHASE_IN_DOUBT;
		snprintf(
			info->error, sizeof(info->error),
			"%s; the guest may run on the destination. Make sure of one side, then say "
			"x-migrate-resolve with owner here or there",
			why);
	});
	log_error("migration in doubt: %s; x-migrate-resolve decides", why);
	doubt = wait_certain(s, &sure);
	if (doubt < 0)
		return error_set(err, doubt, "%s; quit while in doubt", why);
	engine_update(m, {
		info->in_doubt = false;
		m->resolve_asked = -1;
		*info->error = '\0';
	});
	if (doubt == DOUBT_HERE)
		return take_back(s, sure, why, err);
	owner_close(s->owner);
	m->ops->moved(m->opaque);
	return 0;
}

static int take_back(struct source *s, bool sure, const char *why, struct error **err)
{
	const struct migration_ops *ops = s->m->ops;
	struct error *reason = NULL;
	int status = 0;

	if (!sure && fence(s) < 0) {
		ops->in_doubt(s->m->opaque);
		return ask_operator(s, "the owner record cannot be written", err);
	}
	if (sure && s->owner->fd >= 0 && owner_advance(s->owner) < 0)
		log_warning("cannot write the owner record %s; its lock still fences",
			    s->owner->path);
	if (s->decided && ops->locks_acquire)
		status = ops->locks_acquire(s->m->opaque, &reason);
	if (status < 0) {
		log_error("the guest stays paused: %s", error_text(reason));
		error_free(&reason);
		ops->in_doubt(s->m->opaque);
		return error_set(err, status,
				 "%s, and the guest's disks cannot be locked again: it "
				 "stays paused; free the disks and say cont",
				 why);
	}
	ops->resume(s->m->opaque);
	if (s->decided)
		engine_send_reason(s->m, WIRE_ABORT, "the source has taken the guest back");
	return error_set(err, -EREMOTEIO, "%s; the guest runs on here", why);
}

/* Before COMMIT: the guest stays here, whatever a destination thinks that may have said yes
 * already. One that said no (-EREMOTEIO) claims nothing. Returns `status`, or what comes of a
 * doubt. */
static int run_on(struct source *s, int status, struct error **err)
{
	bool marked = !s->shared_record || owner_advance(s->owner) == 0;

	if (!marked && status != -EREMOTEIO && fence(s) < 0) {
		error_free(err);
		s->m->ops->in_doubt(s->m->opaque);
		return ask_operator(s, "the owner record cannot be written", err);
	}
	s->m->ops->resume(s->m->opaque);
	return status;
}

/* COMMIT is out and no answer came, or one that says no: the record decides where there is one. */
static int resolve_doubt(struct source *s, const char *why, struct error **err)
{
	uint64_t deadline = clock_us() + s->parameters.switchover_timeout_ms * 1000;
	const char *better = NULL;

	s->m->ops->in_doubt(s->m->opaque);
	while (s->shared_record && !better && clock_us() < deadline) {
		enum doubt doubt = ask_record(s, &better);

		if (doubt == DOUBT_HERE)
			return take_back(s, false, why, err);
		if (doubt == DOUBT_THERE) {
			owner_close(s->owner);
			s->m->ops->moved(s->m->opaque);
			return 0;
		}
		if (!better)
			poll(NULL, 0, DOUBT_STEP_MS);
	}
	return ask_operator(s, better ? better : why, err);
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
		status = take_back(s, false, error_text(reason), err);
	} else {
		status = resolve_doubt(s, error_text(reason), err);
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
	/* The guest waits for this answer. It does not wait for RUNNING: then the processor is
	 * better left to it. */
	m->channel.spin_us = ENGINE_SPIN_US;
	if (status == 0)
		status = receive_until(s, WIRE_VOTE_YES, deadline, &load_us, err);
	m->channel.spin_us = 0;
	if (status < 0)
		return run_on(s, status, err);
	s->account.load = load_us;
	s->account.wire = clock_us() - prepared > load_us ? clock_us() - prepared - load_us : 0;
	return commit(s, start, err);
}
