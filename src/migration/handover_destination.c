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
		return error_set(
			err, -EPROTO,
			"pages were lost: %llu and %llu zero were sent, %llu and %llu "
			"arrived",
			(unsigned long long)prepare->pages, (unsigned long long)prepare->zero_pages,
			(unsigned long long)d->ram.pages, (unsigned long long)d->ram.zero_pages);
	if (d->ram.suspect_pages)
		return error_set(err, -EBADMSG,
				 "%llu pages arrived damaged and were not sent again",
				 (unsigned long long)d->ram.suspect_pages);
	return 0;
}

/* The lock, the epoch, the disks (unless the guest is to stay stopped), the mark: in this order,
 * all or nothing. d->refused: the guest was to be had, but not to be run. [window] */
static int take_over(struct destination *d, bool disks, struct error **err)
{
	const struct migration_ops *ops = d->m->ops;
	uint64_t found = 0;
	int status = 0;

	d->refused = false;
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
	disks = disks && ops->locks_acquire;
	if (disks)
		status = ops->locks_acquire(d->m->opaque, err);
	if (status == 0 && d->shared_record) {
		status = owner_advance(d->owner);
		if (status < 0) {
			error_set_errno(err, status, "cannot write the owner record");
			if (disks && ops->locks_release)
				ops->locks_release(d->m->opaque);
		}
	}
	d->refused = status < 0;
	if (status < 0 && d->shared_record)
		owner_unlock(d->owner);
	return status;
}

/* No COMMIT will come, or nobody has heard REFUSE. With a record the guest is ours if the source's
 * lock is free. */
static int take_over_alone(struct destination *d, bool disks, struct error **err)
{
	uint64_t deadline = clock_us() + d->m->timeouts.takeover;
	int status;

	do {
		error_free(err);
		status = take_over(d, disks, err);
		if (status != -EAGAIN)
			break;
		poll(NULL, 0, TAKEOVER_STEP_MS);
	} while (clock_us() < deadline);
	if (status == 0)
		log_warning("the source vanished after the vote: the guest is here now");
	return status;
}

static int check_commit(struct destination *d, const struct wire_header *header, struct error **err)
{
	uint64_t epoch;
	int status;

	if (header->type != WIRE_COMMIT)
		return error_set(err, -EPROTO, "%s came where COMMIT was due",
				 wire_type_name(header->type));
	status = token_decode(d->m, header, d->nonce, &epoch, err);
	if (status == 0 && epoch != d->epoch)
		status = error_set(err, -EPROTO, "COMMIT belongs to another epoch");
	return status;
}

static int wait_commit(struct destination *d, struct error **err)
{
	struct wire_header header;
	int status;

	d->m->channel.spin_us = ENGINE_SPIN_US;
	status = engine_receive_until(d->m, &header, clock_us() + d->timeout_us, err);
	d->m->channel.spin_us = 0;
	d->commit_us = clock_us();
	if (status == -EREMOTEIO)
		return error_prefix(err, "the source gave up");
	if (status == 0)
		status = check_commit(d, &header, err);
	if (status == 0)
		return take_over(d, true, err);
	/* Whatever is wrong with the stream: what was meant may have been COMMIT, and the record
	 * knows. */
	return d->shared_record ? take_over_alone(d, true, err) : status;
}

/*
 * The guest is whole here and the record was free, but it cannot run: the source is to take it
 * back. Only when that is known may this side leave; if the source was killed meanwhile the guest
 * would be lost. So it is claimed again, and in the end kept here stopped (*stopped).
 */
static int refuse(struct destination *d, bool *stopped, struct error **err)
{
	struct migration *m = d->m;
	uint64_t deadline = clock_us() + d->timeout_us;
	struct error *word = NULL;
	struct wire_header header;
	int status;

	engine_send_reason(m, WIRE_REFUSE, error_text(*err));
	do {
		status = engine_receive_until(m, &header, deadline, &word);
	} while (status == 0 && clock_us() < deadline); /* a COMMIT that was late */
	error_free(&word);
	if (status == -EREMOTEIO)
		return (*err)->code;
	status = take_over_alone(d, true, err);
	if (status == 0 || !d->refused)
		return status;
	log_error("the guest is here, stopped, and nobody else has it: %s", error_text(*err));
	status = take_over_alone(d, false, err);
	*stopped = status == 0;
	return status;
}

int handover_destination(struct destination *d, const struct wire_header *header,
			 struct error **err)
{
	struct migration *m = d->m;
	uint64_t start = clock_us(), running_us = 0, load_us;
	uint8_t token[TOKEN_SIZE];
	struct prepare prepare;
	bool stopped = false;
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
	if (status < 0 && d->refused && d->shared_record)
		status = refuse(d, &stopped, err);
	if (status < 0)
		return status;
	m->ops->run(m->opaque, prepare.running && !stopped, &running_us);
	/* The mark in the record says who has it; RUNNING would say too much. */
	if (stopped)
		return 0;
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
