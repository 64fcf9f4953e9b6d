/* SPDX-License-Identifier: Apache-2.0 */
/* Writes seeds for fuzz_migration_stream into a folder: whole moves, in its compact form. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/bytes.h"
#include "base/crc32c.h"
#include "migration/wire.h"
#include "../unit/replay.h"

/* The body of RAM ends with one CRC a page; every page is the fuzzer's. */
static void put_message(FILE *file, const struct recording *recording, unsigned int index)
{
	size_t length = recording->messages[index].body;
	uint8_t *message = recording->data + recording->messages[index].offset, head[5], page[4096];
	size_t pages = (recording->messages[index].size - WIRE_HEADER_SIZE - length) / 4096;

	memset(page, 0x5a, sizeof(page));
	for (size_t i = 1; i <= pages; i++)
		bytes_put_u32(message + WIRE_HEADER_SIZE + length - 4 * i,
			      crc32c(0, page, sizeof(page)));
	head[0] = (uint8_t)recording->messages[index].type;
	head[1] = (uint8_t)bytes_get_u16(message + 6);
	bytes_put_u16(head + 2, (uint16_t)length);
	head[4] = (uint8_t)pages;
	fwrite(head, 1, sizeof(head), file);
	fwrite(message + WIRE_HEADER_SIZE, 1, length, file);
}

static void write_seed(const char *folder, const char *name, unsigned int hot, unsigned int most)
{
	struct recording recording;
	char path[4096];
	FILE *file;

	recording_make(&recording, hot);
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "we");
	if (!file) {
		perror(path);
		exit(1);
	}
	fputc(0, file);
	for (unsigned int i = 0; i < recording.count && i < most; i++)
		put_message(file, &recording, i);
	fclose(file);
	recording_free(&recording);
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
		return 2;
	}
	write_seed(argv[1], "move", 0, RECORDING_MESSAGES);
	write_seed(argv[1], "move-writing", 3, RECORDING_MESSAGES);
	write_seed(argv[1], "handshake", 0, 3);
	write_seed(argv[1], "first-round", 0, 6);
	return 0;
}
