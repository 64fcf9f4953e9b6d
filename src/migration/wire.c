/* SPDX-License-Identifier: Apache-2.0 */
#include "migration/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include "base/bytes.h"
#include "base/crc32c.h"

static const char *const type_names[] = {
	[WIRE_HELLO] = "HELLO",
	[WIRE_MACHINE] = "MACHINE",
	[WIRE_SCHEMA] = "SCHEMA",
	[WIRE_RANGES] = "RANGES",
	[WIRE_STATE_EARLY] = "STATE-EARLY",
	[WIRE_RAM] = "RAM",
	[WIRE_ZERO] = "ZERO",
	[WIRE_ROUND_END] = "ROUND-END",
	[WIRE_INTENT] = "INTENT",
	[WIRE_STATE_DELTA] = "STATE-DELTA",
	[WIRE_PREPARE] = "PREPARE",
	[WIRE_COMMIT] = "COMMIT",
	[WIRE_ABORT] = "ABORT",
	[WIRE_KEEPALIVE] = "KEEPALIVE",
	[WIRE_HELLO_OK] = "HELLO-OK",
	[WIRE_MACHINE_OK] = "MACHINE-OK",
	[WIRE_SCHEMA_OK] = "SCHEMA-OK",
	[WIRE_READY] = "READY",
	[WIRE_QUIET] = "QUIET",
	[WIRE_VOTE_YES] = "VOTE-YES",
	[WIRE_RUNNING] = "RUNNING",
	[WIRE_REFUSE] = "REFUSE",
	[WIRE_ROUND_DONE] = "ROUND-DONE",
};

const char *wire_type_name(unsigned int type)
{
	if (type < sizeof(type_names) / sizeof(*type_names) && type_names[type])
		return type_names[type];
	return "an unknown message";
}

static void header_encode(uint8_t *raw, const struct wire_header *header)
{
	memset(raw, 0, WIRE_HEADER_SIZE);
	bytes_put_u32(raw, WIRE_MAGIC);
	bytes_put_u16(raw + 4, header->type);
	bytes_put_u16(raw + 6, header->flags);
	bytes_put_u32(raw + 8, header->length);
	bytes_put_u32(raw + 12, header->sequence);
	bytes_put_u64(raw + 16, header->payload);
	bytes_put_u32(raw + 28, header->crc);
}

int wire_send(struct wire *wire, enum wire_type type, uint16_t flags, const void *body,
	      uint32_t length, struct iovec *iov, unsigned int payload_count, uint64_t payload,
	      uint64_t deadline_us, struct error **err)
{
	uint8_t raw[WIRE_HEADER_SIZE];
	struct iovec plain[2];
	uint64_t before = wire->channel->sent;
	struct wire_header header = {
		.type = (uint16_t)type,
		.flags = flags,
		.length = length,
		.payload = payload,
		.sequence = wire->send_sequence++,
	};
	int status;

	if (!iov)
		iov = plain;
	header_encode(raw, &header);
	header.crc = crc32c(crc32c(0, raw, sizeof(raw)), body, length);
	bytes_put_u32(raw + 28, header.crc);
	iov[0] = (struct iovec){raw, sizeof(raw)};
	iov[1] = (struct iovec){(void *)(uintptr_t)body, length};
	status = channel_send(wire->channel, iov, 2 + payload_count, deadline_us, err);
	if (status < 0) {
		if (wire->channel->sent == before)
			wire->send_sequence--;
		else
			wire->torn = true;
		error_prefix(err, "cannot send %s", wire_type_name(type));
	}
	return status;
}

static int header_check(const struct wire *wire, const uint8_t *raw, struct wire_header *header,
			uint32_t capacity, struct error **err)
{
	if (bytes_get_u32(raw) != WIRE_MAGIC)
		return error_set(err, -EPROTO,
				 "this is no Godwit migration stream, or it is damaged (message "
				 "%u does not start with the magic number)",
				 wire->receive_sequence);
	header->type = bytes_get_u16(raw + 4);
	header->flags = bytes_get_u16(raw + 6);
	header->length = bytes_get_u32(raw + 8);
	header->sequence = bytes_get_u32(raw + 12);
	header->payload = bytes_get_u64(raw + 16);
	header->crc = bytes_get_u32(raw + 28);
	if (header->sequence != wire->receive_sequence)
		return error_set(err, -EPROTO,
				 "migration stream damaged: message %u came where %u was due",
				 header->sequence, wire->receive_sequence);
	if (header->flags & ~(WIRE_FLAG_LAST | WIRE_FLAG_CHECK))
		return error_set(err, -EPROTO, "migration stream damaged: %s with flags 0x%x",
				 wire_type_name(header->type), header->flags);
	if (header->length > capacity)
		return error_set(
			err, -EPROTO,
			"migration stream damaged: %s of %u bytes (at most %u are possible)",
			wire_type_name(header->type), header->length, capacity);
	if (header->payload > (uint64_t)WIRE_PACKET_MAX_PAGES * 4096 ||
	    (header->payload && header->type != WIRE_RAM))
		return error_set(err, -EPROTO,
				 "migration stream damaged: %s with a payload of %llu bytes",
				 wire_type_name(header->type), (unsigned long long)header->payload);
	return 0;
}

int wire_receive(struct wire *wire, struct wire_header *header, void *body, uint32_t capacity,
		 uint64_t deadline_us, struct error **err)
{
	uint8_t raw[WIRE_HEADER_SIZE];
	struct iovec iov = {raw, sizeof(raw)};
	int status;

	status = channel_receive(wire->channel, &iov, 1, deadline_us, err);
	if (status < 0)
		return status;
	status = header_check(wire, raw, header, capacity, err);
	if (status < 0)
		return status;
	if (header->length) {
		iov = (struct iovec){body, header->length};
		status = channel_receive(wire->channel, &iov, 1, deadline_us, err);
		if (status < 0)
			return status;
	}
	bytes_put_u32(raw + 28, 0);
	if (crc32c(crc32c(0, raw, sizeof(raw)), body, header->length) != header->crc)
		return error_set(err, -EPROTO, "migration stream damaged: checksum of %s is wrong",
				 wire_type_name(header->type));
	wire->receive_sequence++;
	return 0;
}
