/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The framer under any input: the first byte chooses how the rest is cut into calls, and the same
 * input cut another way must give the same values and errors.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "control/framer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct digest {
	uint64_t hash, messages, errors;
};

static void digest_add(struct digest *d, const char *data, size_t length)
{
	for (size_t i = 0; i < length; i++)
		d->hash = (d->hash ^ (uint8_t)data[i]) * UINT64_C(0x100000001b3);
}

static struct digest run(const char *data, size_t size, size_t step)
{
	struct digest d = {UINT64_C(0xcbf29ce484222325), 0, 0};
	struct framer f;

	framer_init(&f);
	for (size_t at = 0; at < size;) {
		size_t length = size - at < step ? size - at : step;
		size_t used;

		switch (framer_feed(&f, data + at, length, &used)) {
		case FRAMER_MESSAGE:
			d.messages++;
			digest_add(&d, f.buffer, f.length);
			break;
		case FRAMER_ERROR:
			d.errors++;
			digest_add(&d, f.error, strlen(f.error));
			break;
		case FRAMER_MORE:
			if (used != length)
				abort();
			break;
		}
		at += used;
	}
	framer_free(&f);
	return d;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct digest whole, cut;

	if (size < 1)
		return 0;
	whole = run((const char *)data + 1, size - 1, size);
	cut = run((const char *)data + 1, size - 1, 1 + data[0] % 16);
	if (whole.hash != cut.hash || whole.messages != cut.messages || whole.errors != cut.errors)
		abort();
	return 0;
}
