/* SPDX-License-Identifier: Apache-2.0 */
#include "arch/x86/pvh.h"

#include <elf.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include "arch/x86/mptable.h"

#define NOTE_NAME         "Xen"
#define NOTE_PHYS32_ENTRY 18

#define START_MAGIC        0x336ec578u
#define E820_RAM           1u
#define E820_RESERVED      2u
#define MEMMAP_MAX_ENTRIES 8

struct start_info {
	uint32_t magic, version, flags, module_count;
	uint64_t module_list, cmdline, rsdp, memmap;
	uint32_t memmap_count, reserved;
};

struct module {
	uint64_t address, size, cmdline, reserved;
};

struct memmap_entry {
	uint64_t address, size;
	uint32_t type, reserved;
};

/* What is written at PVH_INFO_START. */
struct info_block {
	struct start_info start;
	struct module module;
	struct memmap_entry memmap[MEMMAP_MAX_ENTRIES];
};
_Static_assert(sizeof(struct info_block) <= PVH_CMDLINE_START - PVH_INFO_START,
	       "start info must not reach the command line");

/* A program header of either class. */
struct program_header {
	uint32_t type;
	uint64_t offset, file_size, memory_size, address, alignment;
};

static bool inside(const struct pvh_kernel *kernel, uint64_t offset, uint64_t size)
{
	return offset <= kernel->size && size <= kernel->size - offset;
}

static int truncated(const struct pvh_kernel *kernel, const char *what, uint64_t offset,
		     uint64_t size, struct error **err)
{
	return error_set(err, -ENOEXEC,
			 "kernel: the file is truncated: its %s is at byte 0x%" PRIx64
			 ", 0x%" PRIx64 " bytes long, the file has only 0x%zx bytes",
			 what, offset, size, kernel->size);
}

static void read_header(const uint8_t *data, bool is64, struct program_header *header)
{
	if (is64) {
		Elf64_Phdr raw;

		memcpy(&raw, data, sizeof(raw));
		*header = (struct program_header){raw.p_type,  raw.p_offset, raw.p_filesz,
						  raw.p_memsz, raw.p_paddr,  raw.p_align};
	} else {
		Elf32_Phdr raw;

		memcpy(&raw, data, sizeof(raw));
		*header = (struct program_header){raw.p_type,  raw.p_offset, raw.p_filesz,
						  raw.p_memsz, raw.p_paddr,  raw.p_align};
	}
}

static uint64_t align_up(uint64_t value, uint64_t alignment)
{
	return (value + alignment - 1) / alignment * alignment;
}

/* Looks through one PT_NOTE segment; sets *entry when the PVH note is in it. */
static int read_notes(const struct pvh_kernel *kernel, const struct program_header *header,
		      bool *found, uint32_t *entry, struct error **err)
{
	/* gABI: notes are 4-byte-aligned; those of segments aligned to 8 are padded to 8. */
	const uint64_t alignment = header->alignment == 8 ? 8 : 4;
	const uint8_t *notes = kernel->image + header->offset;
	uint64_t at = 0, size = header->file_size;

	while (size - at >= sizeof(Elf32_Nhdr)) {
		Elf32_Nhdr note;
		uint64_t name, description;

		memcpy(&note, notes + at, sizeof(note));
		name = at + sizeof(note);
		description = align_up(name + note.n_namesz, alignment);
		if (note.n_namesz > size - name || description > size ||
		    note.n_descsz > size - description)
			return error_set(err, -ENOEXEC,
					 "kernel: an ELF note reaches past the end of its segment");
		if (note.n_type == NOTE_PHYS32_ENTRY && note.n_namesz == sizeof(NOTE_NAME) &&
		    memcmp(notes + name, NOTE_NAME, sizeof(NOTE_NAME)) == 0) {
			if (note.n_descsz != 4 && note.n_descsz != 8)
				return error_set(err, -ENOEXEC,
						 "kernel: the PVH entry note has %u bytes, 4 or 8 "
						 "are expected",
						 note.n_descsz);
			memcpy(entry, notes + description, sizeof(*entry));
			*found = true;
			return 0;
		}
		at = align_up(description + note.n_descsz, alignment);
		if (at > size)
			break;
	}
	return 0;
}

static int add_segment(struct pvh_kernel *kernel, const struct program_header *header,
		       struct error **err)
{
	if (header->memory_size == 0)
		return 0;
	if (header->file_size > header->memory_size)
		return error_set(err, -ENOEXEC,
				 "kernel: the segment at 0x%" PRIx64
				 " is larger in the file (0x%" PRIx64
				 " bytes) than in memory (0x%" PRIx64 ")",
				 header->address, header->file_size, header->memory_size);
	if (kernel->count == PVH_MAX_SEGMENTS)
		return error_set(err, -ENOEXEC, "kernel: more than %u segments to load",
				 PVH_MAX_SEGMENTS);
	kernel->segments[kernel->count++] = (struct pvh_segment){
		.offset = header->offset,
		.file_size = header->file_size,
		.memory_size = header->memory_size,
		.gpa = header->address,
	};
	return 0;
}

struct elf_table {
	bool is64;
	uint64_t offset;
	uint32_t entry_size, count;
};

static int read_elf(const struct pvh_kernel *kernel, struct elf_table *table, struct error **err)
{
	const uint8_t *image = kernel->image;
	uint16_t machine;

	if (kernel->size < SELFMAG || memcmp(image, ELFMAG, SELFMAG) != 0)
		return error_set(err, -ENOEXEC,
				 "kernel: the file is no ELF (a PVH ELF is needed: a vmlinux built "
				 "with CONFIG_PVH, or another kernel with a PVH entry)");
	if (kernel->size < sizeof(Elf32_Ehdr))
		return truncated(kernel, "ELF header", 0, sizeof(Elf32_Ehdr), err);
	table->is64 = image[EI_CLASS] == ELFCLASS64;
	if ((!table->is64 && image[EI_CLASS] != ELFCLASS32) || image[EI_DATA] != ELFDATA2LSB)
		return error_set(err, -ENOEXEC,
				 "kernel: the ELF is not a little-endian one of 32 "
				 "or 64 bits");
	if (table->is64) {
		Elf64_Ehdr header;

		if (kernel->size < sizeof(header))
			return truncated(kernel, "ELF header", 0, sizeof(header), err);
		memcpy(&header, image, sizeof(header));
		machine = header.e_machine;
		*table = (struct elf_table){true, header.e_phoff, header.e_phentsize,
					    header.e_phnum};
	} else {
		Elf32_Ehdr header;

		memcpy(&header, image, sizeof(header));
		machine = header.e_machine;
		*table = (struct elf_table){false, header.e_phoff, header.e_phentsize,
					    header.e_phnum};
	}
	if (machine != EM_X86_64 && machine != EM_386)
		return error_set(err, -ENOEXEC,
				 "kernel: the ELF is for another processor (machine %u), not x86",
				 machine);
	if (table->entry_size < (table->is64 ? sizeof(Elf64_Phdr) : sizeof(Elf32_Phdr)))
		return error_set(err, -ENOEXEC,
				 "kernel: the ELF has no program headers (entries of %u bytes)",
				 table->entry_size);
	if (!inside(kernel, table->offset, (uint64_t)table->entry_size * table->count))
		return truncated(kernel, "program header table", table->offset,
				 (uint64_t)table->entry_size * table->count, err);
	return 0;
}

int pvh_parse(struct pvh_kernel *kernel, const void *image, size_t size, struct error **err)
{
	struct elf_table table = {0};
	bool found = false;
	int code;

	*kernel = (struct pvh_kernel){.image = image, .size = size};
	code = read_elf(kernel, &table, err);
	for (uint32_t i = 0; code == 0 && i < table.count; i++) {
		struct program_header header;

		read_header(kernel->image + table.offset + (uint64_t)i * table.entry_size,
			    table.is64, &header);
		if (header.type != PT_LOAD && header.type != PT_NOTE)
			continue;
		if (!inside(kernel, header.offset, header.file_size))
			return truncated(kernel,
					 header.type == PT_LOAD ? "segment" : "note segment",
					 header.offset, header.file_size, err);
		if (header.type == PT_LOAD)
			code = add_segment(kernel, &header, err);
		else if (!found)
			code = read_notes(kernel, &header, &found, &kernel->entry, err);
	}
	if (code < 0)
		return code;
	if (!found)
		return error_set(
			err, -ENOEXEC,
			"kernel: the ELF has no PVH entry (no note of type 18 from \"Xen\"): "
			"build Linux with CONFIG_PVH");
	if (kernel->count == 0)
		return error_set(err, -ENOEXEC, "kernel: the ELF has no segment to load");
	return 0;
}

/* Highest page-aligned place below the hole where the initrd fits; 0 when there is none. */
static uint64_t initrd_place(const struct ram *ram, size_t size)
{
	const struct ram_region *low = &ram->regions[0];
	uint64_t end = low->gpa + low->size;

	if (size == 0 || size > end || end - size < PVH_HIGH_START)
		return 0;
	return (end - size) & ~(uint64_t)(RAM_PAGE_SIZE - 1);
}

static bool overlaps(uint64_t a, uint64_t a_size, uint64_t b, uint64_t b_size)
{
	return a < b + b_size && b < a + a_size;
}

int pvh_check(const struct pvh_kernel *kernel, struct ram *ram, size_t initrd_size,
	      const char *cmdline, struct error **err)
{
	uint64_t initrd = initrd_place(ram, initrd_size);
	size_t length = strlen(cmdline);

	if (length >= PVH_CMDLINE_MAX)
		return error_set(err, -E2BIG,
				 "the kernel's command line has %zu bytes, at most %u are possible",
				 length, PVH_CMDLINE_MAX - 1);
	if (initrd_size && !initrd)
		return error_set(err, -ENOMEM,
				 "the initrd (%zu bytes) does not fit below %" PRIu64
				 " bytes of guest memory; give more --memory",
				 initrd_size, ram->regions[0].size);
	for (unsigned int i = 0; i < kernel->count; i++) {
		const struct pvh_segment *segment = &kernel->segments[i];

		if (!ram_find(ram, segment->gpa, segment->memory_size))
			return error_set(err, -ENOMEM,
					 "kernel: the segment at 0x%" PRIx64 ", 0x%" PRIx64
					 " bytes, lies outside the guest's memory; give more "
					 "--memory",
					 segment->gpa, segment->memory_size);
		if (overlaps(segment->gpa, segment->memory_size, PVH_INFO_START,
			     PVH_INFO_END - PVH_INFO_START) ||
		    overlaps(segment->gpa, segment->memory_size, MPTABLE_START,
			     MPTABLE_END - MPTABLE_START))
			return error_set(err, -ENOEXEC,
					 "kernel: the segment at 0x%" PRIx64
					 " lies where boot information goes: [0x%x, 0x%x) or "
					 "[0x%x, 0x%x)",
					 segment->gpa, PVH_INFO_START, PVH_INFO_END, MPTABLE_START,
					 MPTABLE_END);
		if (initrd && overlaps(segment->gpa, segment->memory_size, initrd, initrd_size))
			return error_set(err, -ENOMEM,
					 "the initrd (%zu bytes) and the kernel's segment at "
					 "0x%" PRIx64 " do not fit beside each other; give more "
					 "--memory",
					 initrd_size, segment->gpa);
	}
	return 0;
}

static int put(struct ram *ram, uint64_t gpa, const void *data, uint64_t size, const char *what,
	       struct error **err)
{
	int code = ram_write(ram, gpa, data, size);

	if (code < 0)
		return error_set_errno(
			err, code, "cannot write the %s to guest memory at 0x%" PRIx64, what, gpa);
	return 0;
}

static int put_segment(const struct pvh_kernel *kernel, struct ram *ram,
		       const struct pvh_segment *segment, struct error **err)
{
	uint64_t rest = segment->memory_size - segment->file_size;
	uint8_t *zero;
	int code;

	code = put(ram, segment->gpa, kernel->image + segment->offset, segment->file_size, "kernel",
		   err);
	if (code < 0 || rest == 0)
		return code;
	zero = ram_pointer(ram, segment->gpa + segment->file_size, rest);
	if (!zero)
		return error_set(err, -EFAULT, "kernel: a segment lies outside the guest's memory");
	memset(zero, 0, rest);
	ram_mark_dirty(ram, segment->gpa + segment->file_size, rest);
	return 0;
}

static void fill_memmap(const struct ram *ram, struct info_block *block)
{
	uint32_t count = 0;

	block->memmap[count++] = (struct memmap_entry){0, PVH_LOW_END, E820_RAM, 0};
	block->memmap[count++] =
		(struct memmap_entry){PVH_LOW_END, PVH_HIGH_START - PVH_LOW_END, E820_RESERVED, 0};
	for (unsigned int i = 0; i < ram->count && count < MEMMAP_MAX_ENTRIES; i++) {
		const struct ram_region *region = &ram->regions[i];
		uint64_t skip = region->gpa < PVH_HIGH_START ? PVH_HIGH_START - region->gpa : 0;

		block->memmap[count++] =
			(struct memmap_entry){region->gpa + skip, region->size - skip, E820_RAM, 0};
	}
	block->start.memmap_count = count;
}

int pvh_load(const struct pvh_kernel *kernel, struct ram *ram, const void *initrd,
	     size_t initrd_size, const char *cmdline, struct error **err)
{
	struct info_block block = {
		.start = {.magic = START_MAGIC,
			  .version = 1,
			  .cmdline = PVH_CMDLINE_START,
			  .memmap = PVH_INFO_START + offsetof(struct info_block, memmap)},
	};
	int code = pvh_check(kernel, ram, initrd_size, cmdline, err);

	for (unsigned int i = 0; code == 0 && i < kernel->count; i++)
		code = put_segment(kernel, ram, &kernel->segments[i], err);
	if (code == 0 && initrd_size) {
		block.module = (struct module){.address = initrd_place(ram, initrd_size),
					       .size = initrd_size};
		block.start.module_count = 1;
		block.start.module_list = PVH_INFO_START + offsetof(struct info_block, module);
		code = put(ram, block.module.address, initrd, initrd_size, "initrd", err);
	}
	fill_memmap(ram, &block);
	if (code == 0)
		code = put(ram, PVH_CMDLINE_START, cmdline, strlen(cmdline) + 1, "command line",
			   err);
	if (code == 0)
		code = put(ram, PVH_INFO_START, &block, sizeof(block), "start info", err);
	return code;
}

void pvh_set_entry(const struct pvh_kernel *kernel, struct vcpu_state *state)
{
	const struct kvm_segment data = {
		.limit = 0xffffffff,
		.selector = 0x10,
		.type = 3,
		.present = 1,
		.db = 1,
		.s = 1,
		.g = 1,
	};
	struct kvm_sregs2 *sregs = &state->sregs;

	memset(&state->regs, 0, sizeof(state->regs));
	state->regs.rflags = 2;
	state->regs.rip = kernel->entry;
	state->regs.rbx = PVH_INFO_START;
	sregs->cs = data;
	sregs->cs.selector = 8;
	sregs->cs.type = 11;
	sregs->ds = sregs->es = sregs->ss = sregs->fs = sregs->gs = data;
	sregs->tr = (struct kvm_segment){.limit = 0x67, .type = 11, .present = 1};
	sregs->cr0 = 1;
	sregs->cr4 = 0;
	sregs->efer = 0;
}
