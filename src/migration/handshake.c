/* SPDX-License-Identifier: Apache-2.0 */
#include "migration/handshake.h"

#include <errno.h>
#include <string.h>
#include "base/bytes.h"

static int damaged(struct error **err, const char *what)
{
	return error_set(err, -EPROTO, "migration stream damaged: %s", what);
}

void hello_encode(const struct hello *hello, struct buffer *out)
{
	buffer_put_u16(out, hello->version);
	buffer_put_u16(out, hello->version_min);
	buffer_put_u32(out, hello->features);
	buffer_put_u32(out, hello->required);
	buffer_put_bytes(out, hello->nonce, sizeof(hello->nonce));
}

int hello_decode(struct hello *hello, struct reader *in, struct error **err)
{
	hello->version = reader_get_u16(in);
	hello->version_min = reader_get_u16(in);
	hello->features = reader_get_u32(in);
	hello->required = reader_get_u32(in);
	reader_get_bytes(in, hello->nonce, sizeof(hello->nonce));
	/* A longer HELLO is a newer one: what follows is optional by the rule of required bits. */
	return in->failed ? damaged(err, "HELLO") : 0;
}

void machine_offer_encode(const struct machine_offer *offer, struct buffer *out)
{
	const struct description *d = &offer->description;

	buffer_put_u32(out, offer->machine_version);
	buffer_put_string(out, offer->owner_path);
	buffer_put_u8(out, offer->owner_durable);
	buffer_put_bytes(out, offer->owner, sizeof(offer->owner));
	buffer_put_u64(out, offer->epoch);
	buffer_put_u32(out, offer->switchover_timeout_ms);
	buffer_put_u32(out, d->count);
	for (unsigned int i = 0; i < d->count; i++) {
		buffer_put_u8(out, d->entries[i].required);
		buffer_put_string(out, d->entries[i].key);
		buffer_put_string(out, d->entries[i].value);
	}
}

int machine_offer_decode(struct machine_offer *offer, struct reader *in, struct error **err)
{
	struct description *d = &offer->description;
	uint32_t count;
	int status = 0;

	*d = (struct description){0};
	offer->machine_version = reader_get_u32(in);
	reader_get_string(in, offer->owner_path, sizeof(offer->owner_path));
	offer->owner_durable = reader_get_u8(in);
	reader_get_bytes(in, offer->owner, sizeof(offer->owner));
	offer->epoch = reader_get_u64(in);
	offer->switchover_timeout_ms = reader_get_u32(in);
	count = reader_get_u32(in);
	if (in->failed || count > DESCRIPTION_MAX_ENTRIES)
		return damaged(err, "MACHINE");
	for (uint32_t i = 0; i < count && status == 0; i++) {
		char key[DESCRIPTION_MAX_KEY + 1], value[DESCRIPTION_MAX_VALUE + 1];
		bool required = reader_get_u8(in);

		reader_get_string(in, key, sizeof(key));
		reader_get_string(in, value, sizeof(value));
		status = in->failed ? -EPROTO : description_add(d, required, key, "%s", value);
	}
	if (status < 0 || reader_left(in)) {
		description_free(d);
		return damaged(err, "MACHINE names an impossible or repeated property");
	}
	return 0;
}

void prepare_encode(const struct prepare *prepare, uint8_t raw[PREPARE_SIZE])
{
	memcpy(raw, prepare->nonce, ENGINE_NONCE_SIZE);
	bytes_put_u64(raw + 16, prepare->epoch);
	raw[24] = prepare->running;
	bytes_put_u64(raw + 25, prepare->pages);
	bytes_put_u64(raw + 33, prepare->zero_pages);
}

int prepare_decode(struct prepare *prepare, struct reader *in, struct error **err)
{
	reader_get_bytes(in, prepare->nonce, ENGINE_NONCE_SIZE);
	prepare->epoch = reader_get_u64(in);
	prepare->running = reader_get_u8(in);
	prepare->pages = reader_get_u64(in);
	prepare->zero_pages = reader_get_u64(in);
	return in->failed || reader_left(in) ? damaged(err, "PREPARE") : 0;
}

void token_encode(uint8_t raw[TOKEN_SIZE], const uint8_t *nonce, uint64_t number)
{
	memcpy(raw, nonce, ENGINE_NONCE_SIZE);
	bytes_put_u64(raw + ENGINE_NONCE_SIZE, number);
}

int token_decode(struct migration *m, const struct wire_header *header, const uint8_t *nonce,
		 uint64_t *number, struct error **err)
{
	if (header->length != TOKEN_SIZE || memcmp(m->body, nonce, ENGINE_NONCE_SIZE) != 0)
		return error_set(err, -EPROTO,
				 "migration stream damaged: %s belongs to another migration",
				 wire_type_name(header->type));
	*number = bytes_get_u64(m->body + ENGINE_NONCE_SIZE);
	return 0;
}
