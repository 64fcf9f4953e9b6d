/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <elf.h>
#include <errno.h>
#include "arch/x86/mptable.h"
#include "arch/x86/pvh.h"
#include "guest/guest_elf.h"

#define ENTRY 0x200040u

/* A kernel of one segment and one note. */
struct image {
	Elf64_Ehdr header;
	Elf64_Phdr load, note;
	struct {
		Elf64_Nhdr header;
		char name[4];
		uint32_t entry;
	} pvh;
	uint8_t code[256];
};

static struct image make_image(void)
{
	struct image image = {
		.header = {.e_machine = EM_X86_64,
			   .e_phoff = offsetof(struct image, load),
			   .e_phentsize = sizeof(Elf64_Phdr),
			   .e_phnum = 2},
		.load = {.p_type = PT_LOAD,
			 .p_offset = offsetof(struct image, code),
			 .p_paddr = 0x200000,
			 .p_filesz = sizeof(image.code),
			 .p_memsz = 0x3000},
		.note = {.p_type = PT_NOTE,
			 .p_offset = offsetof(struct image, pvh),
			 .p_filesz = sizeof(image.pvh),
			 .p_align = 4},
		.pvh = {{4, 4, 18}, "Xen", ENTRY},
	};

	memcpy(image.header.e_ident, ELFMAG, SELFMAG);
	image.header.e_ident[EI_CLASS] = ELFCLASS64;
	image.header.e_ident[EI_DATA] = ELFDATA2LSB;
	for (size_t i = 0; i < sizeof(image.code); i++)
		image.code[i] = (uint8_t)(i * 7 + 1);
	return image;
}

static struct ram *make_ram(uint64_t size)
{
	struct error *err = NULL;
	struct ram *ram;

	assert_ok(ram_create(&ram, size, RAM_BACKING_SHARED, &err), err);
	return ram;
}

static void test_load(void **state)
{
	struct image image = make_image();
	struct ram *ram = make_ram(8 << 20);
	struct error *err = NULL;
	struct pvh_kernel kernel;
	uint32_t info[14];
	uint64_t module[2], map[3];
	char text[16];
	uint8_t byte;

	assert_ok(pvh_parse(&kernel, &image, sizeof(image), &err), err);
	assert_int_equal(kernel.entry, ENTRY);
	assert_int_equal(kernel.count, 1);
	/* What the segment does not fill is zeroed. */
	memset(ram_pointer(ram, 0x200000, 0x4000), 0xee, 0x4000);
	assert_ok(pvh_load(&kernel, ram, "initrd", 6, "a=b c", &err), err);
	assert_memory_equal(ram_pointer(ram, 0x200000, 256), image.code, 256);
	ram_read(ram, 0x200100, &byte, 1);
	assert_int_equal(byte, 0);
	ram_read(ram, 0x202fff, &byte, 1);
	assert_int_equal(byte, 0);
	ram_read(ram, 0x203000, &byte, 1);
	assert_int_equal(byte, 0xee);

	ram_read(ram, PVH_INFO_START, info, sizeof(info));
	assert_int_equal(info[0], 0x336ec578);
	assert_int_equal(info[1], 1);
	assert_int_equal(info[3], 1); /* one module */
	ram_read(ram, info[6], text, 6);
	assert_string_equal(text, "a=b c");
	ram_read(ram, info[4], module, sizeof(module));
	assert_int_equal(module[0] % 4096, 0);
	assert_int_equal(module[1], 6);
	ram_read(ram, module[0], text, 6);
	assert_memory_equal(text, "initrd", 6);
	assert_int_equal(info[12], 3);
	ram_read(ram, info[10] + 48, map, sizeof(map));
	assert_int_equal(map[0], 0x100000);
	assert_int_equal(map[1], 0x700000);
	assert_int_equal(map[2], 1);
	ram_destroy(ram);
}

static void test_builtin_guest(void **state)
{
	size_t size = (size_t)(guest_elf_end - guest_elf_start);
	struct error *err = NULL;
	struct pvh_kernel kernel;

	assert_ok(pvh_parse(&kernel, guest_elf_start, size, &err), err);
	assert_true(kernel.count > 0);
	assert_true(kernel.entry >= kernel.segments[0].gpa);
}

/* In a copy of just that size, so that a read beyond it is seen by a sanitizer. */
static int parse_prefix(const void *image, size_t size, struct error **err)
{
	uint8_t *copy = malloc(size ? size : 1);
	struct pvh_kernel kernel;
	int code;

	memcpy(copy, image, size);
	code = pvh_parse(&kernel, copy, size, err);
	free(copy);
	return code;
}

static void test_truncated(void **state)
{
	struct image image = make_image();

	for (size_t size = 0; size < offsetof(struct image, code) + sizeof(image.code); size++) {
		struct error *err = NULL;

		assert_int_equal(parse_prefix(&image, size, &err), -ENOEXEC);
		if (!strstr(error_text(err), size < 4 ? "no ELF" : "truncated"))
			fail_msg("%zu bytes: %s", size, error_text(err));
		error_free(&err);
	}
	for (size_t size = 0; size < (size_t)(guest_elf_end - guest_elf_start); size += 97)
		(void)parse_prefix(guest_elf_start, size, NULL);
}

/* Any bytes in the headers: a refusal or a kernel, never a read outside the file or the RAM. */
static void test_garbage(void **state)
{
	uint64_t seed = random_seed();
	struct ram *ram = make_ram(8 << 20);

	for (int round = 0; round < 200000; round++) {
		struct image image = make_image();
		uint8_t *bytes = (uint8_t *)&image;
		struct pvh_kernel kernel;

		for (uint64_t n = 1 + random_next(&seed) % 4; n > 0; n--) {
			size_t at = 4 + random_next(&seed) % (offsetof(struct image, code) - 4);

			bytes[at] = random_next(&seed) % 3 ? (uint8_t)random_next(&seed) : 0xff;
		}
		if (pvh_parse(&kernel, &image, sizeof(image), NULL) == 0)
			(void)pvh_load(&kernel, ram, NULL, 0, "", NULL);
	}
	ram_destroy(ram);
}

#define REFUSE_PARSE(change, part)                                                                 \
	do {                                                                                       \
		struct image image = make_image();                                                 \
		struct error *err = NULL;                                                          \
		change;                                                                            \
		assert_refused(parse_prefix(&image, sizeof(image), &err), err, -ENOEXEC, part);    \
	} while (0)

static void test_refused_headers(void **state)
{
	REFUSE_PARSE(image.header.e_ident[0] = 'x', "no ELF");
	REFUSE_PARSE(image.header.e_ident[EI_CLASS] = 9, "32 or 64 bits");
	REFUSE_PARSE(image.header.e_machine = EM_AARCH64, "another processor");
	REFUSE_PARSE(image.header.e_phentsize = 8, "program headers");
	REFUSE_PARSE(image.header.e_phoff = UINT64_MAX - 8, "truncated");
	REFUSE_PARSE(image.load.p_offset = UINT64_MAX, "truncated");
	REFUSE_PARSE(image.load.p_filesz = UINT64_MAX, "truncated");
	REFUSE_PARSE(image.load.p_memsz = 16, "larger in the file");
	REFUSE_PARSE(image.load.p_memsz = 0, "no segment");
	REFUSE_PARSE(image.pvh.header.n_type = 17, "no PVH entry");
	REFUSE_PARSE(image.pvh.name[0] = 'Y', "no PVH entry");
	REFUSE_PARSE(image.note.p_type = PT_NULL, "no PVH entry");
	REFUSE_PARSE(image.pvh.header.n_namesz = 0xffffffff, "past the end");
	REFUSE_PARSE(image.pvh.header.n_descsz = 0xffffffff, "past the end");
	REFUSE_PARSE(image.pvh.header.n_descsz = 2, "4 or 8");
}

static void test_refused_places(void **state)
{
	struct ram *ram = make_ram(4 << 20);
	struct image image = make_image();
	struct error *err = NULL;
	struct pvh_kernel kernel;
	char *longest = malloc(PVH_CMDLINE_MAX + 1);

	assert_ok(pvh_parse(&kernel, &image, sizeof(image), &err), err);
	assert_ok(pvh_check(&kernel, ram, 0, "", &err), err);
	kernel.segments[0].gpa = 4 << 20;
	assert_refused(pvh_check(&kernel, ram, 0, "", &err), err, -ENOMEM,
		       "outside the guest's memory");
	kernel.segments[0].gpa = UINT64_MAX - 0x1000;
	assert_refused(pvh_check(&kernel, ram, 0, "", &err), err, -ENOMEM, "outside");
	kernel.segments[0].gpa = PVH_INFO_START;
	assert_refused(pvh_check(&kernel, ram, 0, "", &err), err, -ENOEXEC, "boot information");
	kernel.segments[0].gpa = MPTABLE_START - 0x1000;
	assert_refused(pvh_check(&kernel, ram, 0, "", &err), err, -ENOEXEC, "[0xf0000, 0xf1000)");
	kernel.segments[0].gpa = 0x200000;
	assert_refused(pvh_check(&kernel, ram, 4 << 20, "", &err), err, -ENOMEM, "initrd");
	kernel.segments[0].gpa = 0x3fc000;
	assert_refused(pvh_check(&kernel, ram, 0x4000, "", &err), err, -ENOMEM,
		       "beside each other");
	memset(longest, 'x', PVH_CMDLINE_MAX);
	longest[PVH_CMDLINE_MAX] = '\0';
	kernel.segments[0].gpa = 0x200000;
	assert_refused(pvh_check(&kernel, ram, 0, longest, &err), err, -E2BIG, "65535");
	free(longest);
	ram_destroy(ram);
}

static uint8_t sum(const uint8_t *data, size_t size)
{
	uint8_t total = 0;

	while (size > 0)
		total = (uint8_t)(total + data[--size]);
	return total;
}

/* Read as a kernel reads it: pointer, header, entries by their type's size. */
static void test_processor_table(void **state)
{
	static const unsigned int counts[] = {1, 3, 64};
	struct ram *ram = make_ram(4 << 20);
	struct error *err = NULL;

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		const uint8_t *low = ram_pointer(ram, MPTABLE_START, 4096), *table, *entry;
		unsigned int seen[5] = {0}, boot = 0;
		uint32_t address;
		uint16_t length, entries;

		assert_ok(mptable_write(ram, counts[i], &err), err);
		assert_memory_equal(low, "_MP_", 4);
		assert_int_equal(sum(low, 16), 0);
		memcpy(&address, low + 4, sizeof(address));
		table = ram_pointer(ram, address, 44);
		assert_memory_equal(table, "PCMP", 4);
		memcpy(&length, table + 4, sizeof(length));
		memcpy(&entries, table + 34, sizeof(entries));
		assert_true(table + length <= low + 4096);
		assert_int_equal(sum(table, length), 0);
		entry = table + 44;
		while (entries-- > 0) {
			assert_in_range(entry[0], 0, 4);
			if (entry[0] == 0) {
				assert_int_equal(entry[1], seen[0]); /* APIC id */
				assert_true(entry[3] & 1);
				boot += entry[3] >> 1 & 1;
			}
			seen[entry[0]]++;
			entry += entry[0] == 0 ? 20 : 8;
		}
		assert_ptr_equal(entry, table + length);
		assert_int_equal(seen[0], counts[i]);
		assert_int_equal(boot, 1);
		assert_int_equal(seen[2], 1);
		assert_int_equal(seen[3], 15);
		assert_int_equal(seen[4], 2);
	}
	ram_destroy(ram);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_load),
		cmocka_unit_test(test_builtin_guest),
		cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_garbage),
		cmocka_unit_test(test_refused_headers),
		cmocka_unit_test(test_refused_places),
		cmocka_unit_test(test_processor_table),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
