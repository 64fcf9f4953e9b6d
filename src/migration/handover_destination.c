/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vote, and taking the guest over (ARCHITECTURE.md, "Who owns the guest"). This side runs the
 * guest only after COMMIT; or, when the source has vanished after the vote, once the owner record's
 * lock is free and the epoch is still the one it voted for.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "migration/destination.h"

/* How often a source's lock is tried. */
#define TAKEOVER_STEP_MS 5

static int check_prepare(struct destination *d, const struct wire_header *header,
			 struct prepare *prepare, struct error **err)
{
	struct reader in;
	int status;

	reader_init(&in, d->m->body, header->length);
	status = prepare_decode(prepare, &in, err);
	if (status < 0)
		return status;
	if (memcmp(prepare->nonce, d->nonce, sizeof(d->nonce)) != 0 || prepare->epoch != d->epoch)
		return error_set(err, -EPROTO, "PREPARE belongs to another migration");
	if (prepare->pages != d->ram.pages || prepare->zero_pages != d->ram.zero_pages)
		return error_set(err, -EPROTO,
				 "pages were lost: %llu and %llu zero were sent, %llu and %llu "
				 "arrived",
				 (unsigned long long)prepare->pages,
				 (unsigned long long)prepare->zero_pages,
				 (unsigned long long)d->ram.pages,
				 (unsigned long long)d->ram.zero_pages);
	if (d->ram.suspect_pages)
		return error_set(err, -EBADMSG, "%llu pages arrived damaged and were not sent again",
				 (unsigned long long)d->ram.suspect_pages);
	return 0;
}

/* The lock, the epoch, the disks, the mark: in this order, all or nothing. [window] */
static int take_over(struct destination *d, struct error **err)
{
	const struct migration_ops *ops = d->m->ops;
	uint64_t found = 0;
	int status = 0;

	if (d->shared_record) {
		status = owner_lock(d->owner, &found);
		if (status == -EAGAIN)
			return error_set(err, status, "the source still holds the guest");
		if (status < 0)
			return error_set_errno(err, status, "cannot lock the owner record");
		if (found != d->epoch) {
			owner_unlock(d->owner);
			return error_set(err, -ESTALE, "the source has taken the guest back");
		}
	}
	if (ops->locks_acquire)
		status = ops->locks_acquire(d->m->opaque, err);
	if (status == 0 && d->shared_record) {
		status = owner_advance(d->owner);
		if (status < 0) {
			error_set_errno(err, status, "cannot write the owner record");
			if (ops->locks_release)
				ops->locks_release(d->m->opaque);
		}
	}
	if (status < 0 && d->shared_record)
		owner_unlock(d->owner);
	return status;
}

/* No COMMIT will come. With a record the guest is ours if the source's lock is free. */
static int take_over_alone(struct destination *d, struct error **err)
{
	uint64_t deadline = clock_us() + d->m->timeouts.takeover;
	int status;

	if (!d->shared_record)
		return -EPIPE;
	do {
		error_free(err);
		status = take_over(d, err);
		if (status != -EAGAIN)
			break;
		poll(NULL, 0, TAKEOVER_STEP_MS);
	} while (clock_us() < deadline);
	if (status == 0)
		log_warning("the source vanished after the vote: the guest runs on here");
	return status;
}

static int wait_commit(struct destination *d, struct error **err)
{
	struct wire_header header;
	uint64_t epoch;
	int status;

	d->m->channel.spin_us = ENGINE_SPIN_US;
	status = engine_receive_until(d->m, &header, clock_us() + d->timeout_us, err);
	d->m->channel.spin_us = 0;
	d->commit_us = clock_us();
	if (status == -EREMOTEIO)
		return error_prefix(err, "the source gave up");
	if (status < 0) {
		int took = take_over_alone(d, err);

		return took == -EPIPE ? status : took;
	}
	if (header.type != WIRE_COMMIT)
		return error_set(err, -EPROTO, "%s came where COMMIT was due",
				 wire_type_name(header.type));
	status = token_decode(d->m, &header, d->nonce, &epoch, err);
	if (status == 0 && epoch != d->epoch)
		status = error_set(err, -EPROTO, "COMMIT belongs to another epoch");
	return status < 0 ? status : take_over(d, err);
}

int handover_destination(struct destination *d, const struct wire_header *header,
			 struct error **err)
{
	struct migration *m = d->m;
	uint64_t start = clock_us(), running_us = 0, load_us;
	uint8_t token[TOKEN_SIZE];
	struct prepare prepare;
	int status;

	status = check_prepare(d, header, &prepare, err);
	if (status == 0)
		status = m->ops->load(m->opaque, err);
	if (status < 0)
		return status;
	load_us = clock_us() - start;
	token_encode(token, d->nonce, load_us);
	/* A cancel comes too late from here on: the source may commit at any moment. */
	m->channel.cancel_fd = -1;
	status = wire_send(&m->wire, WIRE_VOTE_YES, 0, token, sizeof(token), NULL, 0, 0,
			   clock_us() + d->timeout_us, err);
	if (status < 0)
		return status;
	d->voted = true;
	status = wait_commit(d, err);
	if (status < 0)
		return status;
	m->ops->run(m->opaque, prepare.running, &running_us);
	/* Whether it arrives or not, the guest is here. This thread may have waited for a processor
	 * since, while the guest ran: the source is told for how long. */
	token_encode(token, d->nonce,
		     running_number(running_us - d->commit_us, clock_us() - running_us));
	if (wire_send(&m->wire, WIRE_RUNNING, 0, token, sizeof(token), NULL, 0, 0,
		      clock_us() + d->timeout_us, NULL) < 0)
		log_warning("the source could not be told that the guest runs here");
	engine_update(m, {
		info->account.load = load_us;
		info->account.resume = running_us - d->commit_us;
	});
	return 0;
}
